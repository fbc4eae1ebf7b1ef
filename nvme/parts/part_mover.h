// PartMover: moves whole parts between memory and drives, chunk by chunk as the map says, and
// checks what it reads. It does not know versions: its owner (VersionedChunks or NvmeInputs)
// chooses the slot and judges the bytes. Several threads may move different parts at once.
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

// The bytes on a drive differ from those written (exit 6). The text names file, offset and part.
class CorruptStateError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// Calls work(i) once for every i in [0, count), on any number of threads.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& work)>;
// Runs on the pool, which must outlive the result.
ParallelFor parallel_on(WorkerPool* pool);

// The values that a chunk's checksum is bound to besides its index.
struct ChunkBinding {
  uint64_t incarnation = 0;
  uint64_t version = 0;
};

// One part in transfer. The caller reuses it; the drives own its memory until the move ends.
struct PartIo {
  int part = -1;
  std::span<std::byte> memory;
  std::vector<Transfer> transfers;  // one per chunk
  bool active = false;
  int slot = 0;
  // The binding against which a versioned read is checked, whatever is written meanwhile.
  ChunkBinding bound;
};

// A part's bytes with their hashes, ready to be written.
struct SealedPart {
  int part = -1;
  std::span<std::byte> memory;
  std::vector<uint64_t> hashes;  // by chunk, not bound yet
};

class PartMover {
 public:
  // Drives, map and `parallel` must outlive this. Throws CheckpointError if a file is shorter than
  // the map needs. `advice` is appended to CorruptStateError texts.
  PartMover(std::vector<Drive*> drives, const StripeMap* map, int32_t rank, ParallelFor parallel,
            std::string advice);

  // An `urgent` transfer precedes waiting ones that are not. `memory` is exactly the part's size.
  void start(BlockOp::Kind kind, int part, int slot, std::span<std::byte> memory, PartIo& io,
             bool urgent = false);
  // Waits for a write; returns the first failure, or an empty text.
  std::string finish_write(PartIo& io);
  // Returns whether these are the bytes that were written to the chunk.
  using IsRight = std::function<bool(int64_t chunk, std::span<const std::byte> bytes)>;
  // Waits for a read and checks it. Reads a bad chunk once more before it throws CorruptStateError.
  void finish_read(PartIo& io, const IsRight& is_right);
  // Hashes the part's chunks for a write.
  void seal(int part, std::span<std::byte> memory, SealedPart& sealed) const;

  // Describes a chunk by file, offset and part.
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
