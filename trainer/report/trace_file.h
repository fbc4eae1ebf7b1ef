// TraceFile: a run's timeline in Chrome's trace format, which Perfetto and chrome://tracing show:
// one row for each lane, one box for each operation, with its bytes. Owned by the `train` command,
// written by the engine's thread after each pass; complete when it is destroyed, readable at any
// time. Source: "Trace Event Format", Google, 2016.
// A file named *.svg is a picture of the last step's pass instead.
#pragma once

#include <span>
#include <string>

#include "base/file.h"
#include "offload/schedule/lane_ledger.h"
#include "shard/unit_spec.h"

namespace longshore {

class TraceFile {
 public:
  // Empties the file where it exists. Rank r > 0 writes "<path>.rank<r>".
  TraceFile(const std::string& path, Rank rank);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile();

  // The operations of a pass; `times` in seconds from any fixed point.
  void add(const StepSchedule& schedule, std::span<const OpTime> times, const ModelSpec& model,
           Step step);
  const std::string& path() const { return fd_.path(); }
  // Ends the file. IoError where it, or an earlier line, could not be written: a run is not ended
  // for its timeline, but it says so. The destructor ends it too, without a word.
  void finish();
  // All passes together: a line for each lane with bytes, rate, share of time, and what compute
  // waited for it.
  std::string ledger_text() const;

 private:
  void write(const std::string& text);
  void add_to_ledger(const StepSchedule& schedule, std::span<const OpTime> times);

  UniqueFd fd_;
  Rank rank_;
  bool picture_;
  LaneLedger ledger_;
  double seconds_ = 0.0;  // of all passes
  std::string drawn_;     // the last step's pass
  bool finished_ = false;
  std::string failure_;  // of the first write that failed; nothing is written after it
};

}  // namespace longshore
