// FrozenSums: checks the values of a frozen model that stays in its files (offload.parameters =
// "files") in each step. The first read of a part (the range that the store reads in one call)
// notes its checksum, and every later read of this process compares it. StartCheck checks that the
// first reads have the values that the run began with. The run owns it; the tiers read through it,
// from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>

#include "base/mutex.h"
#include "shard/frozen_source.h"

namespace longshore {

class FrozenSums final : public FrozenSource {
 public:
  // `files` must outlive this.
  explicit FrozenSums(const FrozenSource* files) : files_(files) {}

  // Throws CheckpointError, which names file and tensor, if the values are not those of the first
  // read.
  Bytes read(const std::string& name, StorageType type, Bytes begin,
             std::span<std::byte> out) const override;
  void release(const std::string& name) const override { files_->release(name); }
  std::string place_of(const std::string& name) const override { return files_->place_of(name); }

 private:
  // Parameter, storage type, first byte, number of bytes.
  using Part = std::tuple<std::string, StorageType, Bytes, Bytes>;

  const FrozenSource* files_;
  mutable Mutex mutex_;
  mutable std::map<Part, uint64_t> sums_ LONGSHORE_GUARDED_BY(mutex_);
};

}  // namespace longshore
