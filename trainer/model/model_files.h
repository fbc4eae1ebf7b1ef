// ModelFiles: reads the frozen parameters of a run from its model's files while it trains
// (offload.parameters = "files"). BasePacking owns it. Any thread may read.
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

  Bytes read(const std::string& name, StorageType type, Bytes begin,
             std::span<std::byte> out) const override;
  std::string place_of(const std::string& name) const override;
  // Reads bytes of a matrix as base/packed_format.h packs it, from a parameter whose files hold it
  // so. A stacked parameter has a matrix for each expert.
  void read_packed(const std::string& name, int64_t matrix, Bytes begin,
                   std::span<std::byte> out) const;

 private:
  // Runs `read`, which reads the parameter; turns its IoErrors into DataErrors.
  template <typename Read>
  void reading(const std::string& name, const Read& read) const;
  // Throws if the file is not the one that was opened, so that what was read does not count.
  void check_unchanged(const std::string& name, const SafetensorsFile& file) const;

  const WeightLoader* weights_;
  std::map<const SafetensorsFile*, DirectReader> readers_;
};

}  // namespace longshore
