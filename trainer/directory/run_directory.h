// RunDirectory: owns <run.dir>, which contains everything that a run writes. An exclusive lock
// refuses a second run. One thread. Files:
//   config.toml    the resolved run file        env.json   versions, devices, limits, build id
//   command.txt    the command line             plan.txt, plan.json  the plan
//   run.json       status, for scripts          data.json  files, hashes, counts
//   state_key      identifies the run on its drives
//   chat_template.jinja  a copy of the file that data.chat_template names
//   start.json     identifies the values that the run began with (StartIdentity)
//   reference_train, reference_eval  log-probabilities under the start's weights, for some losses
//   other_reference_train, other_reference_eval  the same under another model
//   metrics.jsonl, tensorboard/, checkpoints/, best/, hf/, save, lock
// The run does not write through symbolic links inside it; <run.dir> itself may be one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/ids.h"

namespace longshore {

struct RunStatus {
  enum class State : uint8_t { kRunning, kDone, kStopped, kFailed };
  State state = State::kRunning;
  std::optional<int> exit_code;        // set when the run has ended
  Step step;                           // finished steps
  std::optional<Step> saved_step;      // step of the newest checkpoint; empty: none exists
  std::optional<Step> committed_step;  // newest step durable on drives; empty: state is in memory
  std::string message;                 // why it failed or stopped; may be empty
};

// Returns "running", "done", "stopped" or "failed".
std::string_view name_of(RunStatus::State state);

class RunDirectory {
 public:
  // Creates the directory and takes the lock, without changes to an earlier run's records. Throws
  // ConfigError that names the process with the lock.
  static RunDirectory open(const std::string& path);
  // Opens the directory on another rank of the run; rank 0 holds the lock.
  static RunDirectory join(const std::string& path);

  const std::string& path() const { return path_; }
  // Returns "<path>/<name>".
  std::string file(std::string_view name) const;
  std::string metrics_file() const { return file("metrics.jsonl"); }
  std::string checkpoints() const { return file("checkpoints"); }
  std::string save_file() const { return file("save"); }
  std::string export_directory() const { return file("hf"); }

  // Writes one of the files above and waits until it is durable.
  void write(std::string_view name, std::string_view text) const;
  // Returns the config.toml of the last start that passed all checks; empty if it is missing or
  // unreadable.
  std::string read_config() const;
  // Writes the arguments quoted, so that a shell parses the same arguments from the file.
  void write_command(const std::vector<std::string>& arguments) const;
  // Writes the chat template of the training conversations, for exports. An empty text removes the
  // file of an earlier start.
  void write_chat_template(const std::string& text) const;
  // Also writes the process id, host name and time, and waits until the file is durable.
  void write_status(const RunStatus& status) const;
  // Replaces run.json atomically during the run without waiting until it is durable.
  void note_status(const RunStatus& status) const;
  static std::string status_text(const RunStatus& status);
  // Returns the last process's status; empty if the file is missing or invalid.
  static std::optional<RunStatus> read_status(const std::string& path);

 private:
  RunDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  // The kernel releases the lock when the process ends in any way. Invalid if another process of
  // the run holds it.
  UniqueFd lock_;
};

// The resolved run file: its values by key, and the differences between two such files. Pure
// functions.

// Returns a line "train.epochs: 2 -> 3" for each key that differs or is in only one of the files.
// Keys of [run] are left out, except run.seed, because every start may set them differently.
std::vector<std::string> config_changes(const std::string& before, const std::string& now);

// Returns the values of a resolved run file by key, in to_toml's format: "train.epochs" -> "2.0".
std::map<std::string, std::string> config_values(const std::string& text);

}  // namespace longshore
