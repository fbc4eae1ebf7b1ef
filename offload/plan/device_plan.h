// DevicePlan: every byte of the device: the engine's named buffers and LibTorch's temporaries.
//
// Device buffers, by name:
//   slot.<i>                  a gathered unit in the compute dtype; with shard_grad_op unit i,
//                             else of the largest unit's size
//   gradient.<i>              fp32 gradients of a unit, from its backward to the end of its drain
//   waiting_gradient.<unit>   the same, for a unit that owns_tied a parameter
//   reduce_scratch            temporaries of a sum over ranks
//   drain_staging             gradients cast for the copy to the host; absent for an fp32 drain
//   batch                     tokens, positions and targets of the step's micro-batches
//   input.<unit>              activation checkpoints of the run (SharedInputGroups) that begins
//                             there, in equal parts by micro-batch
//   input_slot.<i>            the same, if inputs are offloaded: run r uses slot r mod slots
//   output_gradient           running tensors of the carry, then the gradient that flows back, in
//                             equal parts by micro-batch
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device_kind.h"
#include "offload/plan/machine.h"
#include "offload/plan/plan_account.h"
#include "offload/plan/plan_sizes.h"

namespace longshore {

struct PlannedBuffer {
  std::string name;
  Bytes bytes = 0;  // a multiple of kDeviceBufferAlignment
};

// GPU memory outside of the device's cap. Estimates.
struct OutsideCap {
  std::string name;
  Bytes bytes = 0;
};
std::vector<OutsideCap> outside_cap(DeviceKind device, const ShardTopology& topology);

// The automatic limit of the CPU device is the memory that the plan needs.
struct DevicePlan : PlanAccount {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t slots = 0;
  int32_t gradient_buffers = 1;
  int32_t input_slots = 0;             // > 0: activation checkpoints are offloaded through N slots
  std::vector<PlannedBuffer> buffers;  // sum to owned
  Bytes owned = 0;
  Bytes workspace = 0;
  std::string workspace_unit;                           // the largest, "block.3 backward"
  CostSource workspace_source = CostSource::kMeasured;  // the least certain of all units
  Bytes memory = 0;                                     // of the GPU; 0: unknown

  // Returns false for a cap that exceeds the GPU's memory.
  bool limit_is_there() const { return limit_auto || memory == 0 || limit <= memory; }

  // Returns the buffer of that name; nullptr if the plan has none.
  const PlannedBuffer* buffer(const std::string& name) const;
};

DevicePlan plan_device(const PlanSizes& sizes, const Machine& machine);

}  // namespace longshore
