// TraceFile: a run's timeline in Chrome's trace format, which Perfetto and chrome://tracing show:
// one row per track, one box per operation with its bytes. Owned by the `train` command; the
// engine's thread writes it after each pass. It is readable at any time and complete when it is
// destroyed. A file named *.svg holds a picture of the last step's pass instead. Source: "Trace
// Event Format", Google, 2016.
#pragma once

#include <span>
#include <string>

#include "base/file.h"
#include "offload/schedule/step_executor.h"
#include "shard/unit_spec.h"

namespace longshore {

class TraceFile {
 public:
  // Creates the file or empties an existing one. Rank r > 0 writes "<path>.rank<r>".
  TraceFile(const std::string& path, Rank rank);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile();

  // Adds the operations of a pass. `times` are in seconds from any fixed point.
  void add(const StepSchedule& schedule, std::span<const OpTime> times, const ModelSpec& model,
           Step step);
  const std::string& path() const { return fd_.path(); }
  // Ends the file. IoError if this or an earlier write failed, because a failed write does not end
  // the run. The destructor also ends the file and ignores errors.
  void finish();
  // Returns a table over all passes: for each lane its bytes, rate and share of time, and the
  // seconds that compute waited for it.
  std::string ledger_text() const;

 private:
  void write(const std::string& text);
  void add_to_ledger(const StepSchedule& schedule, std::span<const OpTime> times);

  UniqueFd fd_;
  Rank rank_;
  bool picture_;
  LaneLedger ledger_;
  double seconds_ = 0.0;  // total time of all passes
  std::string drawn_;     // SVG of the last step's pass
  bool finished_ = false;
  std::string failure_;  // the first failed write; nothing is written after it
};

}  // namespace longshore
