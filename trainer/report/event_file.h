// EventFile: scalars by step in <run.dir>/tensorboard, as TensorBoard reads them: records of
// length, masked CRC-32C and an Event in protobuf's encoding. Every start of a run has a file of
// its own; its second record tells readers to forget what earlier files say of the steps that are
// done again. Owned by the run's MetricsFile, of rank 0; one thread.
//
// The record of a run is metrics.jsonl, and this is a copy of it: a full disk makes records wait,
// and ends no run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/ids.h"

namespace longshore {

struct Scalar {
  std::string tag;  // "train/loss"
  double value = 0.0;
};

// One record, framing included. `time` in seconds since the epoch.
std::string version_event(double time);
// Steps from `first` on are told anew from here.
std::string restart_event(double time, Step first);
std::string scalar_event(double time, Step step, const std::vector<Scalar>& scalars);

class EventFile {
 public:
  // A new file, whose name comes after those of all others in `directory`, whatever the clock says:
  // readers go by that. IoError where it cannot be made.
  EventFile(const std::string& directory, double time, Step first);

  // Never throws for a disk that is full or broken: the record waits for the next one.
  void add(double time, Step step, const std::vector<Scalar>& scalars);
  const std::string& path() const { return fd_.path(); }

 private:
  void write_waiting();

  UniqueFd fd_;
  Bytes bytes_ = 0;  // of whole records in the file
  std::string waiting_;
};

}  // namespace longshore
