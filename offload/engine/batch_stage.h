// BatchStage: device memory for the inputs of a step's micro-batches, of a fixed size that the plan
// sets. Owned by the engine and used by its thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/batch.h"
#include "device/copy_engine.h"
#include "model/units/unit.h"

namespace longshore {

class BatchStage {
 public:
  // Returns the bytes for `micro_batches` micro-batches of at most `positions` positions, with keys
  // of dropout or without.
  static Bytes bytes_for(int32_t micro_batches, int64_t positions, bool dropout);

  // `memory` has bytes_for() of the same counts and outlives the stage. Inputs that `read_as` has
  // become the tokens that it maps them to; targets stay.
  BatchStage(std::span<std::byte> memory, int32_t micro_batches, int64_t positions,
             std::map<int64_t, int64_t> read_as, CopyEngine* copies, at::Device device = at::kCPU);
  // Copies a step's batches to the device, which must outlive the copies. The result, with this
  // loss, is valid until the next call.
  std::span<const MicroBatch> load(std::span<const Batch> batches,
                                   const std::shared_ptr<const Loss>& loss = {});

 private:
  MicroBatch loaded(const Batch& batch, size_t& row);
  at::Tensor copy_row(size_t row, std::span<const int64_t> values);
  std::span<const int64_t> replaced(std::span<const int64_t> tokens);

  std::span<std::byte> memory_;
  int32_t micro_batches_;
  int64_t positions_;
  std::map<int64_t, int64_t> read_as_;
  std::deque<std::vector<int64_t>> replaced_;  // sources of copies that may be in flight
  CopyEngine* copies_;
  at::Device device_;  // the device of `memory`
  std::vector<MicroBatch> loaded_;
};

}  // namespace longshore
