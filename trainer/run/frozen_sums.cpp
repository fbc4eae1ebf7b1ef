#include "trainer/run/frozen_sums.h"

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {

Bytes FrozenSums::read(const std::string& name, int64_t begin, DType compute,
                       std::span<std::byte> out) const {
  const Bytes bytes = files_->read(name, begin, compute, out);
  const auto elements = static_cast<int64_t>(out.size()) / width_of(compute);
  const uint64_t found = hash64(out);
  {
    const MutexLock lock(mutex_);
    const auto [noted, is_new] = sums_.try_emplace({name, begin, elements, compute}, found);
    if (noted->second == found) return bytes;
  }
  throw CheckpointError(place_of(name) + ": elements from " + std::to_string(begin) +
                        " have other values than when this run first read them (checksum): the "
                        "file changed, or its drive returns wrong data. Restore the file, and the "
                        "same command resumes from the last checkpoint");
}

}  // namespace longshore
