// EventFile: scalars by step in <run.dir>/tensorboard, in TensorBoard's format: each record has a
// length, a masked CRC-32C and an Event in protobuf's encoding. Every start of a run opens its own
// file, whose second record tells readers to discard earlier values of the repeated steps. Owned by
// rank 0's MetricsFile; one thread. metrics.jsonl is the record of a run and this file is a copy: a
// full disk delays records and does not end the run.
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

// These functions return one record with its framing. `time` is in seconds since the epoch.
std::string version_event(double time);
// This record tells readers that steps from `first` on are recorded again.
std::string restart_event(double time, Step first);
std::string scalar_event(double time, Step step, const std::vector<Scalar>& scalars);

class EventFile {
 public:
  // Creates a file whose name sorts after all others in `directory`, independent of the clock,
  // because readers follow that order. IoError if the file cannot be created.
  EventFile(const std::string& directory, double time, Step first);

  // Never throws if the disk is full or broken: the record is kept in memory for a later write, and
  // `failure` gives the reason.
  void add(double time, Step step, const std::vector<Scalar>& scalars);
  // Writes the records that are still in memory.
  void write_waiting();
  // The reason why records are still in memory; empty if none are.
  const std::string& failure() const { return failure_; }
  const std::string& path() const { return fd_.path(); }

 private:
  UniqueFd fd_;
  Bytes bytes_ = 0;  // size of the whole records in the file
  std::string waiting_;
  std::string failure_;
};

}  // namespace longshore
