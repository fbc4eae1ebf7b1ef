// CarryStore: what the engine keeps between units: every unit's input for every micro-batch of the
// step, and the gradient that flows back. Device memory of fixed size, carved by the plan; owned by
// the engine, used by the compute lane, and by the lanes that take inputs to the host and back.
//
// Input of unit u (u >= 1), micro-batch i: the carry of unit u - 1. Inputs of a run
// (SharedInputGroups) are in one place: tensors that pass are there once. There is one place for
// the gradient per micro-batch, for the carry below the unit that runs backward now. In forward it
// is free, so running tensors are there. Where inputs are offloaded, several runs share a place: it
// is tagged with the run that it holds, and the tag is checked by whoever reads. A run always has
// the same place, so a graph that was kept in forward finds its input there again in backward.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <span>
#include <vector>

#include "model/unit.h"
#include "shard/shared_input_groups.h"

namespace longshore {

class CarryStore {
 public:
  struct Memory {
    // [unit - 1][micro-batch]; only those of units that runs are named after are used.
    std::vector<std::vector<std::span<std::byte>>> inputs;
    std::vector<std::span<std::byte>> gradients;  // [micro-batch]
  };
  // `device` is where the memory is.
  CarryStore(const ModelSpec& spec, DType dtype, Memory memory, at::Device device = at::kCPU);

  int32_t micro_batches() const { return static_cast<int32_t>(memory_.gradients.size()); }
  // Copies `carry`, the output of the unit before `unit`, into its place. CheckFailure where a
  // tensor is said to pass and is another one.
  void keep_input(UnitId unit, int32_t micro_batch, const Carry& carry);
  // The input in forward, as tensors over the place; valid until the next keep_input of the same
  // place. Empty for the first unit.
  Carry input(UnitId unit, int32_t micro_batch, int64_t positions) const;
  // The input in backward, where running tensors are zeros.
  Carry activation_checkpoint(UnitId unit, int32_t micro_batch, int64_t positions) const;
  // Tells autograd that the running tensors of a kept graph's input are written over.
  void overwrite_running(UnitId unit, const Carry& in) const;
  // The bytes of the run that has the unit's activation checkpoint; none where nothing is kept.
  std::span<const std::byte> saved_bytes(UnitId unit, int32_t micro_batch) const;
  // Where saved_bytes lay, to be filled with what they were; tagged from now on.
  std::span<std::byte> loaded_bytes(UnitId unit, int32_t micro_batch);
  // Copies the gradient of the carry into `unit`.
  void keep_gradient(UnitId unit, int32_t micro_batch, const Carry& gradient);
  // The kept gradient of the carry out of `unit`.
  Carry gradient_out(UnitId unit, int32_t micro_batch, int64_t positions) const;

 private:
  // Bytes for each position in front of a tensor, where its value is and where its gradient is.
  struct Offsets {
    Bytes value = 0, gradient = 0;
  };
  void lay_out(const SharedInputGroup& run);
  const std::vector<CarryTensorSpec>& specs(UnitId unit) const;  // of its input
  at::Tensor view(const CarryTensorSpec& tensor, CarryUse use, std::span<std::byte> memory,
                  Bytes offset, int64_t positions) const;
  at::Tensor value(UnitId unit, size_t tensor, int32_t micro_batch, int64_t positions) const;

  std::span<std::byte> place(UnitId unit, int32_t micro_batch) const;
  std::atomic<int32_t>* tag(UnitId unit) const;
  void check_tag(UnitId unit) const;

  const ModelSpec* spec_;
  SharedInputGroups runs_;
  DType dtype_;
  at::Device device_;
  Memory memory_;
  std::vector<std::vector<Offsets>> offsets_;  // by unit: of its input's tensors
  // By place: the first unit of the run that it has.
  mutable std::map<const std::byte*, std::atomic<int32_t>> tags_;
};

}  // namespace longshore
