// CarryStore: what the engine keeps between units: every unit's input for every micro-batch of the
// step, and the gradient that flows back. Device memory of fixed size, carved by the plan; owned by
// the engine, used by the compute lane, and by the lanes that take inputs to the host and back.
//
// Input of unit u (u >= 1), micro-batch i: the carry of unit u - 1. There is one place for the
// gradient per micro-batch, for the carry below the unit that runs backward now.
// Where inputs are offloaded, several units share a place: it is tagged with the unit whose input
// it holds, and the tag is checked by whoever reads. A unit always has the same place, so a graph
// that was kept in forward finds its input there again in backward.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <span>
#include <vector>

#include "model/unit.h"

namespace longshore {

class CarryStore {
 public:
  struct Memory {
    std::vector<std::vector<std::span<std::byte>>> inputs;  // [unit - 1][micro-batch]
    std::vector<std::span<std::byte>> gradients;            // [micro-batch]
  };
  // `device` is where the memory is.
  CarryStore(const ModelSpec& spec, DType dtype, Memory memory, at::Device device = at::kCPU);

  int32_t micro_batches() const { return static_cast<int32_t>(memory_.gradients.size()); }
  // Copies `carry`, the output of the unit before `unit`, into its place.
  void keep_input(UnitId unit, int32_t micro_batch, const Carry& carry);
  // The kept input as tensors over the place; valid until the next keep_input of the same place.
  // Empty for the first unit.
  Carry input(UnitId unit, int32_t micro_batch, int64_t positions) const;
  // The bytes of the unit's kept input.
  std::span<const std::byte> saved_bytes(UnitId unit, int32_t micro_batch) const;
  // The same place, to be filled with what saved_bytes had; tagged from now on.
  std::span<std::byte> loaded_bytes(UnitId unit, int32_t micro_batch);
  // Copies the gradient of the carry into `unit`.
  void keep_gradient(UnitId unit, int32_t micro_batch, const Carry& gradient);
  // The kept gradient of the carry out of `unit`.
  Carry gradient_out(UnitId unit, int32_t micro_batch, int64_t positions) const;

 private:
  Carry views(UnitId producer, std::span<std::byte> memory, int64_t positions, CarryUse use) const;

  std::atomic<int32_t>& tag(UnitId unit);
  void check_tag(UnitId unit) const;

  const ModelSpec* spec_;
  DType dtype_;
  at::Device device_;
  Memory memory_;
  std::map<const std::byte*, std::atomic<int32_t>> tags_;  // by place: the unit whose input it has
};

}  // namespace longshore
