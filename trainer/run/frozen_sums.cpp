#include "trainer/run/frozen_sums.h"

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {

Bytes FrozenSums::read(const std::string& name, StorageType type, Bytes begin,
                       std::span<std::byte> out) const {
  const Bytes bytes = files_->read(name, type, begin, out);
  const uint64_t found = hash64(out);
  {
    const MutexLock lock(mutex_);
    const auto [noted, is_new] = sums_.try_emplace({name, type, begin, std::ssize(out)}, found);
    if (noted->second == found) return bytes;
  }
  const std::string where =
      is_packed(type) ? "bytes from " + std::to_string(begin)
                      : "elements from " + std::to_string(begin / width_of(number_of(type)));
  throw CheckpointError(place_of(name) + ": " + where +
                        " have other values than when this run first read them (checksum): the "
                        "file changed, or its drive returns wrong data. Restore the file, and the "
                        "same command resumes from the last checkpoint");
}

}  // namespace longshore
