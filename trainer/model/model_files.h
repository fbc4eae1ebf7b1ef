// ModelFiles: reads the frozen parameters of a run from its model's files while it trains
// (offload.parameters = "files"). ModelSource owns it. Any thread may read.
//
// Reads go past the kernel's page cache, in chunks that the store chooses: a model larger than the
// host's memory would otherwise push out everything else.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/direct_reader.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "shard/frozen_source.h"

namespace longshore {

class ModelFiles final : public FrozenSource {
 public:
  // `directory` and `weights`, which reads from it, must outlive this.
  ModelFiles(const ModelDirectory& directory, const WeightLoader* weights);

  Bytes read(const std::string& name, int64_t begin, DType compute,
             std::span<std::byte> out) const override;
  std::string place_of(const std::string& name) const override;

 private:
  const WeightLoader* weights_;
  std::map<const SafetensorsFile*, DirectReader> readers_;
};

}  // namespace longshore
