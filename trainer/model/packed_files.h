// PackedFiles: the frozen parameters of a run whose frozen matrices are packed (adapter.base). A
// matrix is read from the model's files and packed as a whole, so that neither ranks nor tiers
// change its scales; one that the files hold in the same format is taken as it is. ModelSource owns
// it. Any thread may read; at most
// kKept packed matrices are held.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/packed_format.h"
#include "hf/weight_loader.h"
#include "shard/frozen_source.h"
#include "shard/unit_spec.h"

namespace longshore {

class PackedFiles final : public FrozenSource {
 public:
  // `model` has the parameters packed in `format`; `files` reads the other ones, and `weights` the
  // values. These two must outlive this.
  PackedFiles(const ModelSpec& model, PackedFormat format, const FrozenSource* files,
              const WeightLoader* weights);

  Bytes read(const std::string& name, int64_t begin, DType compute,
             std::span<std::byte> out) const override;
  std::string place_of(const std::string& name) const override { return files_->place_of(name); }

  bool has(const std::string& name) const { return shapes_.contains(name); }
  // Reads values of a packed parameter as the model computes with them in fp32.
  void read_values(const std::string& name, int64_t begin, std::span<float> out) const;

 private:
  static constexpr size_t kKept = 2;
  // One packed matrix; `packing` is held while its bytes are made.
  struct Packed {
    Mutex packing;
    std::vector<std::byte> bytes LONGSHORE_GUARDED_BY(packing);
  };

  std::shared_ptr<Packed> entry(const std::string& name) const;
  std::span<const std::byte> bytes_of(const std::string& name, Packed& packed) const
      LONGSHORE_REQUIRES(packed.packing);

  PackedFormat format_;
  const FrozenSource* files_;
  const WeightLoader* weights_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // of the values of packed parameters
  mutable Mutex mutex_;
  // The latest first.
  mutable std::list<std::pair<std::string, std::shared_ptr<Packed>>> kept_
      LONGSHORE_GUARDED_BY(mutex_);
};

}  // namespace longshore
