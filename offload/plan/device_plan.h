// DevicePlan: every byte of the device: the buffers that the engine owns, by name, and what
// LibTorch takes beside them. Plain values.
//
// Device buffers, by name:
//   slot.<i>                   a gathered unit in the compute dtype; with shard_grad_op unit i,
//                              else of the largest unit's size
//   gradient.<i>               fp32 gradients of a unit, from its backward until they are in host
//   memory waiting_gradient.<unit>    the same for a unit that owns_tied a parameter: its gradients
//   come in
//                              parts
//   reduce_scratch             what a sum over ranks needs beside the gradients
//   drain_staging              gradients cast for the copy down; absent when drained in fp32
//   batch                      tokens, positions and targets of the step's micro-batches
//   input.<unit>               the activation checkpoints of the run that is named after the unit
//   (SharedInputGroups):
//                              equal parts, one for each micro-batch
//   input_slot.<i>             the same, where inputs are offloaded: run r has slot r mod slots
//   output_gradient            what flows back, and before that the running tensors of the carry:
//                              equal parts, one for each micro-batch
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

// What is on a GPU beside what the device's cap covers. Estimates.
struct OutsideCap {
  std::string name;
  Bytes bytes = 0;
};
std::vector<OutsideCap> outside_cap(DeviceKind device, const ShardTopology& topology);

// The limit that is automatic is, on the CPU device, what is needed.
struct DevicePlan : PlanAccount {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t slots = 0;
  int32_t gradient_buffers = 1;
  int32_t input_slots = 0;             // > 0: activation checkpoints are offloaded through so many
  std::vector<PlannedBuffer> buffers;  // sums to owned
  Bytes owned = 0;
  Bytes workspace = 0;
  std::string workspace_unit;                           // which takes most, "block.3 backward"
  CostSource workspace_source = CostSource::kMeasured;  // the least sure of all units'
  Bytes memory = 0;                                     // of the GPU; 0: not known

  // A cap that the GPU does not have would be none.
  bool limit_is_there() const { return limit_auto || memory == 0 || limit <= memory; }

  // The buffer of that name; nullptr when the plan has none.
  const PlannedBuffer* buffer(const std::string& name) const;
};

DevicePlan plan_device(const PlanSizes& sizes, const Machine& machine);

}  // namespace longshore
