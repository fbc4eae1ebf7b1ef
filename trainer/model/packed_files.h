// PackedFiles: the frozen parameters of a run whose frozen matrices are packed: in adapter.base, or
// in the format of the model's own files. In another format a matrix is read from the files, or
// made at random, and packed as a whole, so that neither ranks nor tiers change its scales. Experts
// of a stacked parameter are matrices of their own. BasePacking owns it. Any thread may read. A
// matrix that was packed here is held until all of its bytes were read, so that pieces of it that
// several threads read, and a piece that two experts share, pack it once; the latest kKept are held
// whatever their size, more of them within kHeldBytes, and one more by each thread that reads. A
// rank that reads a shard of a matrix does not read all of it, so the tier releases what it has
// read.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/packed_format.h"
#include "hf/weight_loader.h"
#include "shard/flat_layout.h"
#include "shard/frozen_source.h"
#include "shard/unit_spec.h"
#include "trainer/model/model_files.h"
#include "trainer/model/random_base.h"

namespace longshore {

class PackedFiles final : public FrozenSource {
 public:
  // `model` has the packed parameters, which tiers hold as a run of this compute dtype does;
  // `files` reads the other ones and what is packed already, and `weights` the values. These two
  // must outlive this.
  PackedFiles(const ModelSpec& model, DType compute, const ModelFiles* files,
              const WeightLoader* weights);

  // Packs a base with random weights, which must outlive this.
  PackedFiles(const ModelSpec& model, DType compute, const RandomBase* random);

  Bytes read(const std::string& name, StorageType type, Bytes begin,
             std::span<std::byte> out) const override;
  // Frees what is held of the parameter's matrices.
  void release(const std::string& name) const override;
  std::string place_of(const std::string& name) const override { return plain().place_of(name); }

  bool has(const std::string& name) const { return parameters_.contains(name); }
  // Reads bytes of a packed parameter.
  void read_packed(const std::string& name, Bytes begin, std::span<std::byte> out) const;
  // Reads values of a packed parameter as the model computes with them in fp32.
  void read_values(const std::string& name, int64_t begin, std::span<float> out) const;

 private:
  static constexpr size_t kKept = 2;
  static constexpr Bytes kHeldBytes = 64 * kMiB;
  // The matrices of a packed parameter: one, or one for each expert.
  struct Parameter {
    std::vector<int64_t> shape;  // of the values of a matrix
    StoredMatrices stored;
    bool published = false;  // the files hold it in this format
    PackedFormat format() const { return packing_of(stored.type); }
    int64_t values() const { return shape[0] * shape[1]; }
  };
  using MatrixId = std::pair<std::string, int64_t>;  // the parameter and the expert
  // One packed matrix; `packing` is held while its bytes are made.
  struct Packed {
    Mutex packing;
    std::vector<std::byte> bytes LONGSHORE_GUARDED_BY(packing);
    size_t read LONGSHORE_GUARDED_BY(packing) = 0;  // bytes that were read of it
  };

  void take_parameters(const ModelSpec& model, DType compute);
  // Reads values that are packed here.
  void read_unpacked(const std::string& name, int64_t begin, std::span<float> out) const;
  // Returns the source of parameters that are not packed.
  const FrozenSource& plain() const {
    if (random_ != nullptr) return *random_;
    return *files_;
  }
  std::shared_ptr<Packed> entry(const MatrixId& id) const;
  // Frees what `chosen` says of an id.
  template <typename Chosen>
  void forget(const Chosen& chosen) const;
  std::span<const std::byte> bytes_of(const MatrixId& id, Packed& packed) const
      LONGSHORE_REQUIRES(packed.packing);
  // Reads bytes of a packed matrix; those behind its last are zero.
  void read_matrix(const MatrixId& id, Bytes begin, std::span<std::byte> out) const;

  const ModelFiles* files_ = nullptr;      // null: random weights
  const WeightLoader* weights_ = nullptr;  // the same
  const RandomBase* random_ = nullptr;     // null: weights from files
  std::map<std::string, Parameter> parameters_;
  mutable Mutex mutex_;
  // The latest first; `held_` is the bytes of all of them.
  mutable std::list<std::pair<MatrixId, std::shared_ptr<Packed>>> kept_
      LONGSHORE_GUARDED_BY(mutex_);
  mutable Bytes held_ LONGSHORE_GUARDED_BY(mutex_) = 0;
};

}  // namespace longshore
