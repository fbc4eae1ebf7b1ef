// Manifest: one block on each drive that identifies the version of the state on the drive. Pure
// functions over bytes; a block is untrusted until its checksum and every field are checked.
//
// Little-endian, one block of 4096 bytes; two copies are kManifestStride apart at the file's start:
//
//   0   8  magic "LONGNVME"          80  8  layout hash
//   8   4  format, 1                 88  8  checksum of the drive's checksum table
//   12  4  bytes of the payload      96  8  step
//   16 16  run                      104  8  chunk bytes
//   32  4  rank      36 4 ranks     112 64  weights of the drives, 4 bytes each
//   40  4  drive     44 4 drives    176  .  payload, at most kMaxNoteBytes
//   48  8  sequence  56 8 version
//   64  8  incarnation                      zeros
//   72  8  data incarnation        4088  8  xxh3-64 of all bytes before it
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "nvme/parts/stripe_map.h"
#include "shard/durability.h"

namespace longshore {

inline constexpr Bytes kMaxNoteBytes = 2048;
inline constexpr int kManifestCopies = 2;

// The step of a manifest that names the file's owner and holds no version.
inline constexpr int64_t kNoStep = -1;

// A state that all ranks have. `sequence` counts commits, skipped steps included; `version` counts
// changes of the state. A version uses slot version mod 2, a manifest copy sequence mod 2.
struct CommitPoint {
  uint64_t sequence = 0;
  uint64_t version = 0;
  uint64_t incarnation = 0;       // of the start that committed it
  uint64_t data_incarnation = 0;  // of the start that wrote the version
  int64_t step = 0;
  std::string note;  // payload of the run: data cursor, generator, counters

  int slot() const { return static_cast<int>(version % 2); }
  // Returns the part of it that the run sees.
  DurablePoint durable() const { return {sequence, version, step, note}; }
};

struct Manifest {
  RunKey run;
  int32_t rank = 0;
  int32_t ranks = 1;
  int32_t drive = 0;
  int32_t drives = 1;
  uint64_t layout_hash = 0;
  uint64_t table_root = 0;
  Geometry geometry;
  CommitPoint point;
};

// Both take exactly one block.
void encode(const Manifest& manifest, std::span<std::byte> block);
// Returns nullopt if the checksum or a field is wrong.
std::optional<Manifest> decode(std::span<const std::byte> block);

// Returns true if the block is all zeros: never written, or voided.
bool is_empty(std::span<const std::byte> block);
// Returns the run in a block that begins like a manifest, even if the rest is damaged.
std::optional<RunKey> claimed_run(std::span<const std::byte> block);

// Returns a non-negative hash of the fields that must be equal on all ranks.
int64_t digest_of(const CommitPoint& point);

}  // namespace longshore
