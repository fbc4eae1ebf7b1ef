// ModelFiles: reads the frozen parameters of a run from its model's files while it trains
// (offload.parameters = "files"). ModelSource owns it. Any thread may read.
//
// Reads are buffered, in chunks that the store chooses, and leave the page cache when they are
// done: a model larger than the host's memory would otherwise push out everything else.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "hf/weight_loader.h"
#include "shard/frozen_source.h"

namespace longshore {

class ModelFiles final : public FrozenSource {
 public:
  // `weights` must outlive this.
  explicit ModelFiles(const WeightLoader* weights) : weights_(weights) {}

  Bytes read(const std::string& name, int64_t begin, DType compute,
             std::span<std::byte> out) const override;
  std::string place_of(const std::string& name) const override;

 private:
  const WeightLoader* weights_;
};

}  // namespace longshore
