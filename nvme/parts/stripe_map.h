// StripeMap: the drive and the offset in each slot of every chunk of a rank's state. Made once from
// the parts' sizes and the drives' weights; plain data, any thread.
//
// A part is read or written as a whole: one unit's parameters, or the rest of its state. Its chunks
// are distributed over the drives by weight; on a drive they are contiguous.
//
//   drive file: [ manifests | tables A, B | parts with one slot | slot A | slot B ]
//
// A map for one version has one slot and no tables; parts are overwritten in place.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "nvme/drive/block_file.h"

namespace longshore {

inline constexpr int kMaxDrives = 16;
// The copies are farther apart than any unit that drives rewrite internally.
inline constexpr Bytes kManifestStride = 16 * kKiB;
inline constexpr Bytes kManifestAreaBytes = 2 * kManifestStride;

// The layout of a rank's state on its drives; fixed when the files are made.
struct Geometry {
  Bytes chunk_bytes = 2 * kMiB;
  std::array<uint32_t, kMaxDrives> weights{};  // share of each drive in the stripes
  bool operator==(const Geometry&) const = default;
};

struct PartSpec {
  std::string name;  // for errors: "unit 3's moments"
  Bytes bytes = 0;   // a multiple of kBlockBytes
  // True: rewritten in every version, with a slot per version kept. False: written once.
  bool versioned = true;
};

struct ChunkPlace {
  int32_t part = 0;
  int32_t drive = 0;
  Bytes part_offset = 0;
  Bytes bytes = 0;
  std::array<Bytes, 2> offsets{};  // in the drive's file, by slot; equal with one slot
  int64_t table_index = 0;         // index among the drive's chunks
};

class StripeMap {
 public:
  // The first `drives` weights must be >= 1. `versions` (1 or 2) is the number of versions kept.
  StripeMap(std::vector<PartSpec> parts, const Geometry& geometry, int drives, int versions = 2);

  int drives() const { return static_cast<int>(file_bytes_.size()); }
  int versions() const { return versions_; }
  const Geometry& geometry() const { return geometry_; }
  int part_count() const { return static_cast<int>(parts_.size()); }
  const PartSpec& part(int part) const { return parts_.at(static_cast<size_t>(part)); }
  // The part's chunks are [first_chunk(part), first_chunk(part + 1)).
  int64_t first_chunk(int part) const { return first_chunks_.at(static_cast<size_t>(part)); }
  const std::vector<ChunkPlace>& chunks() const { return chunks_; }
  Bytes file_bytes(int drive) const { return file_bytes_.at(static_cast<size_t>(drive)); }
  int64_t chunks_on(int drive) const { return chunks_on_.at(static_cast<size_t>(drive)); }
  // Returns the size of the drive's checksum table: 8 bytes per chunk, in whole blocks.
  Bytes table_bytes(int drive) const { return align_up(8 * chunks_on(drive), kBlockBytes); }
  Bytes table_offset(int drive, int slot) const {
    return kManifestAreaBytes + slot * table_bytes(drive);
  }
  // Returns a hash of the whole layout; starts with equal hashes can read each other's files.
  uint64_t layout_hash() const;

 private:
  void cut_into_chunks();
  void place_chunks();

  std::vector<PartSpec> parts_;
  Geometry geometry_;
  int versions_;
  std::vector<int64_t> first_chunks_;
  std::vector<ChunkPlace> chunks_;
  std::vector<int64_t> chunks_on_;
  std::vector<Bytes> file_bytes_;
};

}  // namespace longshore
