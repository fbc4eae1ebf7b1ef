// RunDriver: trains golden models through the command line in this process, and reads back the
// files of the run. Test code.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace longshore {

// Returns a folder with the files of a golden case and its weights (tests/fakes/golden_weights.h).
std::string golden_directory(const std::string& name);
std::vector<std::string> golden_names();         // dense models
std::vector<std::string> expert_golden_names();  // models with experts
// Adapters of PEFT on golden models, with the run that trains each.
std::string adapter_golden_directory(const std::string& name);
std::vector<std::string> adapter_golden_names();
Json golden_facts(const std::string& name);
// Returns the name of a test over golden cases, such as "llama_tied".
std::string golden_test_name(const testing::TestParamInfo<std::string>& info);

// Returns a path of this process under the test's temporary folder; nothing is there.
std::string scratch_directory(const std::string& name);

using Arguments = std::vector<std::string>;

inline Arguments joined(Arguments list, const Arguments& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// Whether runs on a GPU share the record of its self-check with other tests, or make it themselves.
enum class SelfChecks { kShared, kOwn };

class RunDriver {
 public:
  // Runs in a scratch directory of that name, which is removed with the driver.
  explicit RunDriver(const std::string& name, SelfChecks self_checks = SelfChecks::kShared);
  RunDriver(const RunDriver&) = delete;
  RunDriver& operator=(const RunDriver&) = delete;
  ~RunDriver();

  // Returns the arguments of a run of the golden case as its script made it: fp32, one row per
  // sequence, in file order, 20 steps. Later arguments win.
  static std::vector<std::string> golden_arguments(const std::string& golden);
  // Runs `longshore train` with these keys and run.dir; returns the exit code.
  int train(const std::vector<std::string>& arguments) const;

  // Trains on several ranks: real processes under `longshore launch` with output in ranks.log of
  // the directory. Returns the launcher's exit code.
  int train_ranks(int ranks, const std::vector<std::string>& arguments) const;
  // Starts the launcher, or the trainer for one rank; returns the id of its new process group.
  int start_ranks(int ranks, const std::vector<std::string>& arguments) const;
  // Sets what the processes of train_ranks and start_ranks run first; async-signal-safe.
  void before_exec(std::function<void()> work) { before_exec_ = std::move(work); }
  // Returns the output of the ranks of train_ranks or start_ranks.
  std::string output() const;

  const std::string& directory() const { return directory_; }
  // Returns the plan of `longshore plan --json` for this number of ranks on one node.
  Json plan(int ranks) const;
  // Expects every step's device peak within the plan, which is the cap as device_memory is auto.
  void expect_within_plan() const;
  // Returns the objects of this kind in metrics.jsonl.
  std::vector<Json> metrics(const std::string& kind) const;
  // Returns the number of lines of metrics.jsonl.
  size_t metrics_lines() const;
  // Returns `key` of every step line.
  std::vector<double> steps(const std::string& key) const;
  // Returns the fp32 state of every trainable parameter in the newest checkpoint: "<name>.master",
  // "<name>.exp_avg", "<name>.exp_avg_sq".
  std::map<std::string, std::vector<float>> state() const;

 private:
  std::string directory_;
  SelfChecks self_checks_;
  std::function<void()> before_exec_ = [] {};
};

// Returns the bytes of every file below a run's directory by path, without its lock.
std::map<std::string, std::string> record_of(const std::string& directory);

// Returns all F32 tensors of a safetensors file.
std::map<std::string, std::vector<float>> read_tensors(const std::string& path);

// Returns |a - b| / |b| over all elements.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);

// Runs `eval` with these arguments and returns its loss. The test fails if the command does.
double eval_loss(const Arguments& arguments);

}  // namespace longshore
