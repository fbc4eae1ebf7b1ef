// CarryStore: the hidden states (the carry) between units: every unit's input for every micro-batch
// of a step, and the gradient that flows back. Device memory of a fixed size that the plan sets.
// Owned by the engine; used by the compute lane and by the lanes that copy inputs to the host and
// back.
//
// The input of unit u >= 1 for micro-batch i is the carry of unit u - 1. The inputs of a run
// (SharedInputGroups) share one buffer, which holds tensors that pass through once, and behind them
// what the plan keeps of the units' results. Each
// micro-batch has one buffer of resident tensors, and one gradient buffer, for the carry below the
// unit that runs backward; in forward that one holds the running tensors instead. Where inputs are
// offloaded, several runs reuse a buffer: its tag names the run that it holds, and every reader
// checks the tag. A run always uses the same buffer, so a graph kept from forward finds its input
// there in backward.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "device/copy_engine.h"
#include "model/units/unit.h"
#include "shard/input_tier.h"

namespace longshore {

class CarryStore {
 public:
  struct Memory {
    // [unit - 1][micro-batch]; only entries of units that a run is named after are used.
    std::vector<std::vector<std::span<std::byte>>> inputs;
    std::vector<std::span<std::byte>> residents;  // [micro-batch]
    std::vector<std::span<std::byte>> gradients;  // [micro-batch]
    KeptResults results = KeptResults::kNone;     // runs hold these of their units' results too
  };
  // `device` is the device of `memory`.
  CarryStore(const ModelSpec& spec, DType dtype, Memory memory, at::Device device = at::kCPU);

  int32_t micro_batches() const { return static_cast<int32_t>(memory_.gradients.size()); }
  // Copies `carry`, the output of the unit before `unit`, into the unit's input. Throws
  // CheckFailure if a tensor that should pass through is a different one.
  void keep_input(UnitId unit, int32_t micro_batch, const Carry& carry);
  // Returns the input in forward as views of the buffer, valid until the next keep_input of that
  // buffer. Empty for the first unit.
  Carry input(UnitId unit, int32_t micro_batch, int64_t positions) const;
  // Returns the places of the unit's results, beside its input, undefined for those that are not
  // kept; empty if none are.
  std::vector<at::Tensor> results(UnitId unit, int32_t micro_batch, int64_t positions) const;
  // Returns the input in backward, with zeros for running tensors.
  Carry activation_checkpoint(UnitId unit, int32_t micro_batch, int64_t positions) const;
  // Tells autograd that running tensors of a kept graph's input are overwritten.
  void overwrite_running(UnitId unit, const Carry& in) const;
  // Returns the bytes of the run with the unit's activation checkpoint; empty if it has none.
  std::span<const std::byte> saved_bytes(UnitId unit, int32_t micro_batch) const;
  // Returns the buffer of saved_bytes() for the caller to refill, and tags it with the run.
  std::span<std::byte> loaded_bytes(UnitId unit, int32_t micro_batch);
  // Stores the gradient of the carry into `unit`.
  void keep_gradient(UnitId unit, int32_t micro_batch, const Carry& gradient);
  // Returns the stored gradient of the carry out of `unit`.
  Carry gradient_out(UnitId unit, int32_t micro_batch, int64_t positions) const;

 private:
  // Offsets of a tensor's value and gradient, in bytes per position.
  struct Offsets {
    Bytes value = 0, gradient = 0;
  };
  // Sets the offsets of values in the inputs of units `first` to `last`: of all resident tensors,
  // or of all others that are kept. Returns their bytes per position.
  Bytes lay_out_inputs(UnitId first, UnitId last, bool resident);
  void lay_out(const SharedInputGroup& run);
  const std::vector<CarryTensorSpec>& specs(UnitId unit) const;  // specs of its input
  at::Tensor view(const CarryTensorSpec& tensor, CarryUse use, std::span<std::byte> memory,
                  Bytes offset, int64_t positions) const;
  at::Tensor value(UnitId unit, size_t tensor, int32_t micro_batch, int64_t positions) const;

  std::span<std::byte> place(UnitId unit, int32_t micro_batch) const;
  std::span<std::byte> memory_of(UnitId unit, const CarryTensorSpec& tensor,
                                 int32_t micro_batch) const;
  std::atomic<int32_t>* tag(UnitId unit) const;
  void check_tag(UnitId unit) const;

  const ModelSpec* spec_;
  SharedInputGroups runs_;
  DType dtype_;
  at::Device device_;
  Memory memory_;
  std::vector<std::vector<Offsets>> offsets_;  // by unit: offsets of its input's tensors
  // By unit and result, in bytes per position; kNotKept. Empty: the unit keeps none.
  std::vector<std::vector<Bytes>> result_offsets_;
  // By buffer: the first unit of the run that it holds.
  mutable std::map<const std::byte*, std::atomic<int32_t>> tags_;
};

// Copies the inputs of units to their tier after forward, and back before backward. Owned by the
// engine. save() is for the D2H lane, load() for the H2D lane, of different units at the same time.
class InputOffload {
 public:
  // Both must outlive this.
  InputOffload(InputTier* tier, CopyEngine* copies) : tier_(tier), copies_(copies) {}

  // Copies the unit's inputs of the first `micro_batches` micro-batches; with the staging slot that
  // they are put into or taken from where the tier has slots.
  void save(UnitId unit, std::optional<StagingSlot> staging, const CarryStore& carry,
            int32_t micro_batches);
  void load(UnitId unit, std::optional<StagingSlot> staging, CarryStore& carry,
            int32_t micro_batches);
  InputTier& tier() { return *tier_; }

 private:
  InputTier* tier_;
  CopyEngine* copies_;
};

}  // namespace longshore
