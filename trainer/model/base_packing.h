// BasePacking: how a run holds the frozen parameters of its base model: which matrices are packed
// and in which format, and what reads the parameters that stay packed or in the files while it
// trains. ModelSource owns it; immutable once it is open. Any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "config/run_config.h"
#include "model/families/arch_spec.h"
#include "model/models/packed_model.h"
#include "shard/unit_spec.h"
#include "trainer/model/base_files.h"
#include "trainer/model/model_files.h"
#include "trainer/model/packed_files.h"
#include "trainer/model/random_base.h"

namespace longshore {

class BasePacking {
 public:
  // Chooses the format: adapter.base, or that of the model's own files. Throws ConfigError for a
  // model whose matrices cannot be packed.
  BasePacking(const RunConfig& config, const ArchSpec& arch, const BaseFiles& base);
  BasePacking(const BasePacking&) = delete;
  BasePacking& operator=(const BasePacking&) = delete;

  // Opens the readers of these parameters, if the base has weights or they are random. `base` must
  // outlive this.
  void open(const RunConfig& config, const ModelSpec& whole, const BaseFiles& base);

  // Returns nullopt if no matrix is packed.
  const std::optional<Packing>& format() const { return packing_; }
  // Returns whether frozen matrices are packed (adapter.base, or the model's own files).
  bool on() const { return packing_.has_value(); }
  // Returns whether this parameter is packed.
  bool has(const std::string& name) const { return packed_ && packed_->has(name); }
  // Reads frozen parameters while a run trains; null unless they are packed or
  // offload.parameters = "files".
  const FrozenSource* frozen() const {
    if (packed_) return &*packed_;
    return files_ ? &*files_ : nullptr;
  }
  // Reads bytes of a packed parameter as the tiers hold it.
  void read_packed(const std::string& name, Bytes begin, std::span<std::byte> out) const;
  // Reads values [begin, begin + out.size()) of a packed parameter as the model computes with them.
  void read_values(const std::string& name, int64_t begin, std::span<float> out) const;

 private:
  std::optional<Packing> packing_;
  std::optional<ModelFiles> files_;    // empty: no tier reads from it
  std::optional<RandomBase> random_;   // empty: the base is not random, or nothing is packed
  std::optional<PackedFiles> packed_;  // over files_ or random_; empty: no matrix is packed
};

}  // namespace longshore
