// FrozenSource: the values of frozen parameters, read from files that a run never writes: the
// model's own. The run owns it, and it outlives the tiers that read from it. Reading is safe from
// several threads.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/bytes.h"
#include "shard/storage_type.h"

namespace longshore {

class FrozenSource {
 public:
  virtual ~FrozenSource() = default;
  // Fills `out` with bytes of a parameter stored in this type, from `begin` on (FrozenPiece), as a
  // tier in host memory would hold them: whole numbers, or any bytes of packed matrices. Returns
  // the bytes read from the file. Throws DataError, which names file and tensor, if they cannot be
  // read or the file changed since the run opened it.
  virtual Bytes read(const std::string& name, StorageType type, Bytes begin,
                     std::span<std::byte> out) const = 0;
  // Frees memory that is cached for this parameter, because the run will not read it again. A later
  // read still works, but it may take longer.
  virtual void release(const std::string&) const {}
  // Returns the file and the tensor of a parameter, for error texts.
  virtual std::string place_of(const std::string& name) const = 0;
};

}  // namespace longshore
