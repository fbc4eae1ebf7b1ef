// UnitProbe: runs one unit of a model, forward and backward, on the device under its meter, and
// reports LibTorch's memory. It uses UnitRunner over slots, accumulators and activation checkpoints
// of real sizes; all values are zero, which does not change memory. Made and used by one thread,
// one at a time per process, because LibTorch's CPU memory is counted for the process.
#pragma once

#include <memory>

#include "device/device_kind.h"
#include "offload/engine/probe/one_unit_model.h"
#include "offload/engine/probe/workspace_fit.h"

namespace longshore {

struct ProbeDevice {
  DeviceKind kind = DeviceKind::kCpu;
  int gpu = 0;
  DType compute = DType::kF32;
};

// Returns the probe's own buffer bytes, at most those of a run for the unit.
Bytes probe_bytes(const OneUnitModel& model, DType compute, int64_t most_positions);

class UnitProbe {
 public:
  // Probes micro-batches of at most `most_positions`. Both pointers must outlive the probe.
  UnitProbe(const OneUnitModel* model, const ProbeDevice& device, int64_t most_positions);
  UnitProbe(const UnitProbe&) = delete;
  UnitProbe& operator=(const UnitProbe&) = delete;
  ~UnitProbe();

  // Runs a micro-batch of documents of these lengths; `trained` positions have a target.
  ProbeTrace run(const std::vector<int64_t>& documents, int64_t trained);
  ProbeTrace run(const ProbeInput& input);

 private:
  class Bench;
  std::unique_ptr<Bench> bench_;
};

}  // namespace longshore
