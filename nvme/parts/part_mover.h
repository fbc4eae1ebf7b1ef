// PartMover: moves whole parts between memory and drives, chunk by chunk as the map says, and
// checks what comes back. Knows nothing of versions: its owner says which slot, and whether bytes
// are right. Owned by VersionedChunks or NvmeInputs. Different parts may be moved by different
// threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/errors.h"
#include "nvme/drive/drive.h"
#include "nvme/parts/stripe_map.h"
#include "pinned/worker_pool.h"

namespace longshore {

// Bytes on a drive are not what was written; names file, offset and part (exit 6).
class CorruptStateError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// Calls work(i) once for every i in [0, count), on as many threads as it likes.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& work)>;
// On the pool, which must outlive the result.
ParallelFor parallel_on(WorkerPool* pool);

// What a chunk's checksum is bound to besides its place.
struct ChunkBinding {
  uint64_t incarnation = 0;
  uint64_t version = 0;
};

// One part on its way. Kept by the caller, reused; its memory belongs to the drives until the move
// is finished.
struct PartIo {
  int part = -1;
  std::span<std::byte> memory;
  std::vector<Transfer> transfers;  // one a chunk
  bool active = false;
  int slot = 0;
  // Of a read of versions: what it will be checked against, whatever is written meanwhile.
  ChunkBinding bound;
};

// A part's bytes with their hashes, ready to be written.
struct SealedPart {
  int part = -1;
  std::span<std::byte> memory;
  std::vector<uint64_t> hashes;  // by chunk, not bound to anything yet
};

class PartMover {
 public:
  // Drives, map and `parallel` must outlive this. The drives' files have the map's sizes, else
  // CheckpointError. `advice` ends what a CorruptStateError says.
  PartMover(std::vector<Drive*> drives, const StripeMap* map, int32_t rank, ParallelFor parallel,
            std::string advice);

  // `urgent`: before all that waits and is not. `memory` has the part's bytes.
  void start(BlockOp::Kind kind, int part, int slot, std::span<std::byte> memory, PartIo& io,
             bool urgent = false);
  // Waits for a write; what failed first, or nothing.
  std::string finish_write(PartIo& io);
  // Whether these are the bytes that were written there.
  using IsRight = std::function<bool(int64_t chunk, std::span<const std::byte> bytes)>;
  // Waits for a read and checks it. Reads a chunk once more before it throws CorruptStateError.
  void finish_read(PartIo& io, const IsRight& is_right);
  // Hashes the part's chunks.
  void seal(int part, std::span<std::byte> memory, SealedPart& sealed) const;

  // A chunk by file, offset and part.
  std::string describe(int64_t chunk, int slot) const;

 private:
  Drive& drive_of(int64_t chunk) const;
  void read_again(const PartIo& io, int64_t index, const IsRight& is_right);

  std::vector<Drive*> drives_;
  const StripeMap* map_;
  int32_t rank_;
  ParallelFor parallel_;
  std::string advice_;
};

}  // namespace longshore
