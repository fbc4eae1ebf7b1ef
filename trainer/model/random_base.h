// RandomBase: the values of a base with random weights (model.init = "random") as a source that is
// read like files: for packing, and for what stays unpacked beside packed matrices. BasePacking
// owns it; immutable. Any thread may read.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "shard/frozen_source.h"
#include "shard/unit_spec.h"

namespace longshore {

class RandomBase final : public FrozenSource {
 public:
  RandomBase(const ModelSpec& whole, uint64_t seed);

  // Returns 0, because nothing is read from a file.
  Bytes read(const std::string& name, StorageType type, Bytes begin,
             std::span<std::byte> out) const override;
  std::string place_of(const std::string& name) const override;
  // Reads values [begin, begin + out.size()) of a parameter.
  void read_values(const std::string& name, int64_t begin, std::span<float> out) const;

 private:
  std::map<std::string, InitSpec> inits_;
  uint64_t seed_;
};

}  // namespace longshore
