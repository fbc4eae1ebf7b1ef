// RunDirectory: everything that a run writes lies in <run.dir>; this object owns it for the
// process: an exclusive lock refuses a second run on it. One thread. Files:
//   config.toml    the resolved run file        env.json   versions, devices, limits, build id
//   command.txt    how it was started           plan.txt, plan.json  the plan
//   run.json       status, for scripts          data.json  files, hashes, counts
//   state_key      names the run on its drives
//   chat_template.jinja  of data.chat_template, where it names a file
//   metrics.jsonl, tensorboard/, checkpoints/, best/, hf/, save, lock
// Nothing is written through a symbolic link in it; the directory itself may be one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/ids.h"
#include "base/json.h"

namespace longshore {

struct RunStatus {
  enum class State : uint8_t { kRunning, kDone, kStopped, kFailed };
  State state = State::kRunning;
  std::optional<int> exit_code;        // of a run that ended
  Step step;                           // finished steps
  std::optional<Step> saved_step;      // of the newest checkpoint; none: nothing is saved
  std::optional<Step> committed_step;  // durable on drives; none: the state is in memory
  std::string message;                 // why it failed or stopped; empty = nothing to say
};

// "running", "done", "stopped", "failed".
std::string_view name_of(RunStatus::State state);

class RunDirectory {
 public:
  // Makes the directory and takes the lock; of an earlier run nothing is changed. Throws
  // ConfigError naming the process that holds it.
  static RunDirectory open(const std::string& path);
  // The directory as another rank of the run sees it, whose rank 0 holds the lock.
  static RunDirectory join(const std::string& path);

  const std::string& path() const { return path_; }
  // "<path>/<name>".
  std::string file(std::string_view name) const;
  std::string metrics_file() const { return file("metrics.jsonl"); }
  std::string checkpoints() const { return file("checkpoints"); }
  std::string save_file() const { return file("save"); }
  std::string export_directory() const { return file("hf"); }

  void write_config(const std::string& toml) const;
  // What the last start wrote; empty where that is missing or cannot be read.
  std::string read_config() const;
  // Quoted so that a shell reads the same arguments back.
  void write_command(const std::vector<std::string>& arguments) const;
  void write_environment(const Json& environment) const;
  void write_plan(const std::string& text, const std::string& json) const;
  void write_data(const Json& data) const;
  // What conversations were written by, for exports; an empty text removes that of an earlier
  // start.
  void write_chat_template(const std::string& text) const;
  // With the process id, host name and time of writing added.
  void write_status(const RunStatus& status) const;
  // write_status while the run goes on: whole at any moment, not waited for until it is on disk.
  void note_status(const RunStatus& status) const;
  static std::string status_text(const RunStatus& status);
  // What the last process on the directory left; nothing where that is missing or no status.
  static std::optional<RunStatus> read_status(const std::string& path);

 private:
  RunDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  // The kernel frees the lock when the process ends, however it ends. Invalid where another process
  // of the run holds it.
  UniqueFd lock_;
};

// One argument as a shell would have to read it.
std::string shell_quoted(const std::string& argument);

}  // namespace longshore
