// <run.dir>/metrics.jsonl, one JSON object per line, written by rank 0; one thread. Kinds
// are start, step, eval, checkpoint, commit, event and end; readers ignore unknown keys. Each line
// is one write to a file opened for appending, so a killed process loses at most its last line.
//
// Numbers are printed so that they read back to the same bits. JSON has no NaN and no infinity, so
// a value that is not finite is null (a skipped step's loss or norm).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/measurement.h"
#include "model/losses/loss.h"
#include "model/units/router_load.h"
#include "offload/engine/step_totals.h"
#include "trainer/metrics/event_file.h"

namespace longshore {

// Formats a loss or a margin for people: four decimals, "1.8342"; three digits where these would
// hide a small value, "3.21e-05".
std::string format_loss(double value);

struct StartRecord {
  std::string plan = {};  // the plan's fingerprint or its text
  std::string config_hash = {};
  int32_t ranks = 1;
  Step resumed_from = {};  // 0: a new run
};

// Memory use of a step; 0 means unknown.
struct MemoryRecord {
  Bytes device_peak = 0;
  Bytes device_plan = 0;
  Bytes device_tensors = 0;       // the part of the peak that workspace tensors filled at most
  int64_t allocator_retries = 0;  // since the start: WorkspaceUse::retries
  Bytes host_pinned = 0;
  Bytes host_rss = 0;
};

// One optimizer step. Counts are summed over all ranks.
struct StepRecord {
  Step step = {};
  double loss = 0.0;
  double grad_norm = 0.0;   // before clipping
  double clip_scale = 1.0;  // the factor applied to gradients
  double lr = 0.0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  int64_t sequences = 0;
  double epoch = 0.0;
  double seconds = 0.0;
  double tokens_per_second = 0.0;
  // Keyed by link or part ("h2d", "optimizer"); contains only what was measured.
  std::vector<std::pair<std::string, double>> stall_seconds = {};
  std::vector<std::pair<std::string, Bytes>> bytes = {};
  std::vector<RankTimes> times = {};  // by rank; empty with one rank, which waits for no other
  MemoryRecord memory = {};
  std::optional<double> aux_loss = {};  // the balance loss, without its coefficient
  std::optional<RouterStatistics> router = {};
  std::optional<double> token_accuracy = {};  // of chosen answers if answers are judged
  std::optional<double> entropy = {};         // in nats
  FigureValues figures = {};                  // of the loss
  bool skipped = false;
  int64_t skipped_total = 0;
};

struct EvalRecord {
  Step step = {};
  double loss = 0.0;
  std::optional<double> perplexity = 0.0;     // of the loss over tokens alone
  std::optional<double> token_accuracy = {};  // of a loss over tokens
  int64_t tokens = 0;
  double seconds = 0.0;
  FigureValues figures = {};                // of the loss
  std::map<std::string, double> sets = {};  // "<name>/loss" and others of each of eval.sets
};

struct CheckpointRecord {
  Step step = {};
  std::string path = {};
  Bytes bytes = 0;
  double seconds = 0.0;
};

// A step whose state is durable on the drives, so the run can resume after it.
struct CommitRecord {
  Step step = {};
  int64_t version = 0;  // version of the state
  double seconds = 0.0;
};

struct EventRecord {
  std::string level = {};  // "info", "warning", "error"
  std::string code = {};   // a stable identifier, e.g. "checkpoint_refused"
  int32_t rank = 0;
  std::string text = {};
};

struct EndRecord {
  std::string status = {};  // "done", "stopped", "failed"
  int exit_code = 0;
  int64_t steps = 0;
};

// Returns the object of a record's line (trainer/metrics/metric_table.h); `time` is in seconds
// since 1970.
template <typename Record>
Json to_json(const Record& record, double time);

// Returns the numbers of a step or an evaluation with their tags of the table of metrics.
template <typename Record>
std::vector<Scalar> scalars_of(const Record& record);

class MetricsFile {
 public:
  // Creates the file, or empties an existing one.
  static MetricsFile begin(const std::string& path);
  // Keeps the lines up to `step` (its step line and the evaluations and checkpoints of that step),
  // durably cuts off all later lines and a torn last line, then appends. A missing file is created.
  static MetricsFile resume(const std::string& path, Step step);

  // If the file holds more than the lines up to `step`, copies all of it to "<path>.abandoned" (or
  // "<path>.abandoned-<n>") and returns that path. Otherwise returns "".
  static std::string set_aside(const std::string& path, Step step);

  // From now on also writes scalars to a new TensorBoard event file in `directory`. The next step
  // is `first`.
  void copy_to_events(const std::string& directory, Step first) {
    events_.emplace(directory, unix_seconds(), first);
  }

  // Never throws if the disk is full or broken or the file was removed: the line is kept in memory
  // for a later write and `failure` gives the reason.
  template <typename Record>
  void write(const Record& record) {
    const double time = unix_seconds();
    write_line(to_json(record, time));
    if constexpr (std::is_same_v<Record, StepRecord> || std::is_same_v<Record, EvalRecord>) {
      if (events_) events_->add(time, record.step, scalars_of(record));
    }
  }
  // Makes everything written so far durable; on failure `failure` gives the reason. Call it before
  // a checkpoint is made.
  void sync();
  // The reason why lines are still in memory; empty if none are.
  const std::string& failure() const { return failure_; }
  // The reason why values for TensorBoard are still in memory; empty if none are.
  std::string events_failure() const { return events_ ? events_->failure() : std::string(); }
  const std::string& path() const { return fd_.path(); }

 private:
  MetricsFile(UniqueFd fd, Bytes bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  void write_line(const Json& object);
  void write_waiting();

  UniqueFd fd_;
  Bytes bytes_ = 0;  // size of the whole lines in the file
  std::string waiting_;
  std::string failure_;
  std::optional<EventFile> events_;
};

// Returns the byte offset after the last line of `step` or an earlier step that precedes the first
// line of a later step; 0 if there is none.
Bytes metrics_cut_offset(const std::string& path, Step step);

}  // namespace longshore
