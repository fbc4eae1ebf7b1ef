// RunDriver: trains golden models through the command line, in this process, and reads back what
// the run left. Test code.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace longshore {

std::string golden_directory(const std::string& name);
std::vector<std::string> golden_names();         // of dense models
std::vector<std::string> expert_golden_names();  // of models with experts
Json golden_facts(const std::string& name);
// What a test over golden cases is called: "llama_tied".
std::string golden_test_name(const testing::TestParamInfo<std::string>& info);

// A path of this process under the test's temporary folder; nothing is there.
std::string scratch_directory(const std::string& name);

using Arguments = std::vector<std::string>;

inline Arguments joined(Arguments list, const Arguments& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

class RunDriver {
 public:
  // Runs in a scratch directory of that name, which goes with the driver.
  explicit RunDriver(const std::string& name);
  RunDriver(const RunDriver&) = delete;
  RunDriver& operator=(const RunDriver&) = delete;
  ~RunDriver();

  // Arguments of a run of the golden case as its script made it: fp32, one row a sequence, in file
  // order, 20 steps. Later arguments win.
  static std::vector<std::string> golden_arguments(const std::string& golden);
  // `longshore train` with these keys and run.dir. Returns the exit code.
  int train(const std::vector<std::string>& arguments) const;

  // The same on several ranks: real processes under `longshore launch`, whose output goes to
  // ranks.log in the directory. Returns the launcher's exit code.
  int train_ranks(int ranks, const std::vector<std::string>& arguments) const;
  // Starts that launcher, or for one rank the trainer itself, and returns its process id, leader of
  // a process group of its own.
  int start_ranks(int ranks, const std::vector<std::string>& arguments) const;
  // What the processes of train_ranks and start_ranks do first; async-signal-safe.
  void before_exec(std::function<void()> work) { before_exec_ = std::move(work); }
  // What the ranks of train_ranks or start_ranks printed.
  std::string output() const;

  const std::string& directory() const { return directory_; }
  // The run's plan as `longshore plan --json` gives it for so many ranks on one node.
  Json plan(int ranks) const;
  // Every step's device peak is within its plan; device_memory is auto, so the cap is the plan.
  void expect_within_plan() const;
  // The objects of metrics.jsonl with that kind.
  std::vector<Json> metrics(const std::string& kind) const;
  // Lines of metrics.jsonl so far.
  size_t metrics_lines() const;
  // `key` of every step line.
  std::vector<double> steps(const std::string& key) const;
  // fp32 state of every trainable parameter in the newest checkpoint: "<name>.master",
  // "<name>.exp_avg", "<name>.exp_avg_sq".
  std::map<std::string, std::vector<float>> state() const;

 private:
  std::string directory_;
  std::function<void()> before_exec_ = [] {};
};

// The bytes of every file below a run's directory, by its path there; its lock is left out.
std::map<std::string, std::string> record_of(const std::string& directory);

// All F32 tensors of a safetensors file.
std::map<std::string, std::vector<float>> read_tensors(const std::string& path);

// |a - b| / |b| over all elements.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace longshore
