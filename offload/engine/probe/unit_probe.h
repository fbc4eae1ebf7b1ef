// UnitProbe: runs one unit of a model, forward and backward, on the device and under its meter, as
// the engine runs it (UnitRunner, over slots, accumulators and activation checkpoints of their real
// sizes), and says what LibTorch took. All values are zero, which costs kernels the same as any
// others. Made and used by one thread, with the run's compute threads; one at a time in a process,
// because LibTorch's memory on the CPU is counted for the whole process.
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

// What the probe holds itself, beside what it measures: no more than a run's buffers for the unit.
Bytes probe_bytes(const OneUnitModel& model, DType compute, int64_t most_positions);

class UnitProbe {
 public:
  // For micro-batches of at most `most_positions`. Both must outlive the probe.
  UnitProbe(const OneUnitModel* model, const ProbeDevice& device, int64_t most_positions);
  UnitProbe(const UnitProbe&) = delete;
  UnitProbe& operator=(const UnitProbe&) = delete;
  ~UnitProbe();

  // Of documents of these lengths, `trained` of their positions with a target.
  ProbeTrace run(const std::vector<int64_t>& documents, int64_t trained);
  ProbeTrace run(const ProbeInput& input);

 private:
  class Bench;
  std::unique_ptr<Bench> bench_;
};

}  // namespace longshore
