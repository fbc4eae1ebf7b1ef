// DevicePlan: every byte of the device: the engine's planned buffers and LibTorch's temporaries.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/device_kind.h"
#include "offload/plan/machine.h"
#include "offload/plan/plan_sizes.h"

namespace longshore {

// PlanAccount: a plan's use of one memory, line by line, and the limit. Plain values.

struct PlanLine {
  std::string name;
  std::string detail;
  Bytes bytes = 0;
  bool exact = true;  // false: a bound or an estimate
};

struct PlanAccount {
  std::vector<PlanLine> lines;  // sum to total
  Bytes total = 0;
  Bytes limit = 0;
  bool limit_auto = false;

  bool within_limit() const { return total <= limit; }
};

enum class BufferKind : uint8_t {
  kSlot,             // a gathered unit in the compute dtype; with shard_grad_op unit i, else of the
                     // largest unit's size
  kGradient,         // fp32 gradients of a unit, from its backward to the end of its drain
  kWaitingGradient,  // by unit: the same, for a unit that owns_tied a parameter
  kReduceScratch,    // temporaries of a sum over ranks
  kDrainStaging,     // gradients cast for the copy to the host; absent for an fp32 drain
  kBatch,            // tokens, positions, targets, dropout keys of the step's micro-batches
  kInput,            // by unit: activation checkpoints of the run (SharedInputGroups) that begins
                     // there, in equal parts by micro-batch
  kInputSlot,        // the same, if inputs are offloaded: runs use the slots in rotation
  kResidentInputs,   // resident tensors of the carry, in equal parts by micro-batch
  kSequenceStates,   // what decoding keeps of its sequences; where the plan also trains, what the
                     // buffers of gradients leave of it (DevicePlan::states)
  kOutputGradient,   // running tensors of the carry, then the gradient that flows back, in equal
                     // parts by micro-batch
};

// Identifies a planned buffer: its kind, and its slot or unit if the kind has several. The plan
// makes buffers by key, and the engine finds them by key.
struct BufferKey {
  BufferKey(BufferKind only_one) : kind(only_one) {}
  BufferKey(BufferKind of_unit, UnitId unit) : kind(of_unit), index(unit.value) {}
  BufferKey(DeviceSlot slot) : kind(BufferKind::kSlot), index(slot.value) {}
  BufferKey(GradientBuffer buffer) : kind(BufferKind::kGradient), index(buffer.value) {}
  BufferKey(InputSlot slot) : kind(BufferKind::kInputSlot), index(slot.value) {}
  bool operator==(const BufferKey&) const = default;

  BufferKind kind;
  int32_t index = 0;
};
// Returns the name in plans and errors, such as "slot.0", "input.block.3" or "batch".
std::string name_of(BufferKey key, const ModelSpec& model);

struct PlannedBuffer {
  BufferKey key;
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
  std::vector<PlannedBuffer> buffers;  // sum to owned; they lie one behind the other
  Bytes owned = 0;
  // The states of sequences that are decoded, behind the begin of the first buffer. Training and
  // decoding take turns, so the states begin where the buffers of gradients do.
  ByteRange states = {};
  Bytes workspace = 0;
  std::string workspace_unit;                           // the largest, "block.3 backward"
  CostSource workspace_source = CostSource::kMeasured;  // the least certain of all units
  Bytes memory = 0;                                     // of the GPU; 0: unknown

  // Returns false for a cap that exceeds the GPU's memory.
  bool limit_is_there() const { return limit_auto || memory == 0 || limit <= memory; }

  // Returns the buffer; nullptr if the plan has none of that key.
  const PlannedBuffer* buffer(BufferKey key) const;
};

DevicePlan plan_device(const PlanSizes& sizes, const Machine& machine);

}  // namespace longshore
