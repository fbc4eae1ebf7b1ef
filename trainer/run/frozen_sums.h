// FrozenSums: checks the values of a frozen model that stays in its files
// (offload.parameters = "files"). The first read of each part notes its checksum, and every later
// read compares it, also in later processes: <run.dir>/frozen keeps the checksums. The run owns it;
// the tiers read through it, from any thread. The other functions are for the main thread.
//
// A part is what the store reads at once. The store cuts parameters at fixed elements, so another
// number of ranks reads the same parts, apart from those where a rank's shard begins or ends. The
// checksums of such parts are noted anew.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>

#include "base/ids.h"
#include "base/mutex.h"
#include "shard/frozen_source.h"

namespace longshore {

class FrozenSums final : public FrozenSource {
 public:
  // `files` must outlive this.
  explicit FrozenSums(const FrozenSource* files) : files_(files) {}

  // Takes what earlier processes of the run kept, on any rank. CheckpointError if it is damaged.
  void load(const std::string& run_directory);
  // Keeps the checksums if there are new ones. Throws IoError.
  void keep(const std::string& run_directory, Rank rank);
  // Removes what was kept: a run that starts over may have another model.
  static void forget(const std::string& run_directory);

  // Throws CheckpointError, which names file and tensor, if the values are not those of the first
  // read.
  Bytes read(const std::string& name, int64_t begin, DType compute,
             std::span<std::byte> out) const override;
  void release(const std::string& name) const override { files_->release(name); }
  std::string place_of(const std::string& name) const override { return files_->place_of(name); }

 private:
  // Parameter, first element, elements, and the dtype of the values.
  using Part = std::tuple<std::string, int64_t, int64_t, DType>;

  void load_file(const std::string& path);

  const FrozenSource* files_;
  mutable Mutex mutex_;
  mutable std::map<Part, uint64_t> sums_ LONGSHORE_GUARDED_BY(mutex_);
  mutable bool new_ LONGSHORE_GUARDED_BY(mutex_) = false;
};

}  // namespace longshore
