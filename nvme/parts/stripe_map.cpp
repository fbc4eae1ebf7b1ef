#include "nvme/parts/stripe_map.h"

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

// Large areas are aligned with the drive's internal pages and erase blocks.
constexpr Bytes kLargeArea = 64 * kMiB;
constexpr Bytes kLargeAlignment = 2 * kMiB;

Bytes align_area(Bytes offset, Bytes area_bytes) {
  return align_up(offset, area_bytes >= kLargeArea ? kLargeAlignment : kBlockBytes);
}

// Distributes chunks in proportion to the weights: each goes to the drive that is furthest below
// its share.
class Turns {
 public:
  Turns(const Geometry& geometry, int drives) {
    for (int i = 0; i < drives; ++i) weights_.push_back(geometry.weights[static_cast<size_t>(i)]);
    given_.resize(weights_.size());
  }
  int32_t next() {
    size_t chosen = 0;
    for (size_t i = 1; i < weights_.size(); ++i) {
      // Finds the least (given + 1) / weight without division.
      if ((given_[i] + 1) * weights_[chosen] < (given_[chosen] + 1) * weights_[i]) chosen = i;
    }
    ++given_[chosen];
    return static_cast<int32_t>(chosen);
  }

 private:
  std::vector<uint64_t> weights_;
  std::vector<uint64_t> given_;
};

}  // namespace

StripeMap::StripeMap(std::vector<PartSpec> parts, const Geometry& geometry, int drives,
                     int versions)
    : parts_(std::move(parts)), geometry_(geometry), versions_(versions) {
  LONGSHORE_CHECK(drives >= 1 && drives <= kMaxDrives) << drives;
  LONGSHORE_CHECK(versions == 1 || versions == 2) << versions;
  LONGSHORE_CHECK(geometry.chunk_bytes > 0 && geometry.chunk_bytes % kBlockBytes == 0);
  for (int i = 0; i < drives; ++i) {
    LONGSHORE_CHECK(geometry.weights[static_cast<size_t>(i)] >= 1) << "weight of drive " << i;
  }
  chunks_on_.resize(static_cast<size_t>(drives));
  file_bytes_.resize(static_cast<size_t>(drives));
  cut_into_chunks();
  place_chunks();
}

void StripeMap::cut_into_chunks() {
  Turns turns(geometry_, drives());
  for (size_t p = 0; p < parts_.size(); ++p) {
    LONGSHORE_CHECK(parts_[p].bytes >= 0 && parts_[p].bytes % kBlockBytes == 0) << parts_[p].name;
    first_chunks_.push_back(static_cast<int64_t>(chunks_.size()));
    for (Bytes begin = 0; begin < parts_[p].bytes; begin += geometry_.chunk_bytes) {
      ChunkPlace chunk;
      chunk.part = static_cast<int32_t>(p);
      chunk.drive = turns.next();
      chunk.part_offset = begin;
      chunk.bytes = std::min(geometry_.chunk_bytes, parts_[p].bytes - begin);
      chunk.table_index = chunks_on_[static_cast<size_t>(chunk.drive)]++;
      chunks_.push_back(chunk);
    }
  }
  first_chunks_.push_back(static_cast<int64_t>(chunks_.size()));
}

void StripeMap::place_chunks() {
  for (int drive = 0; drive < drives(); ++drive) {
    std::array<Bytes, 2> area_bytes{};  // written once, versioned
    for (const ChunkPlace& chunk : chunks_) {
      const bool versioned = parts_[static_cast<size_t>(chunk.part)].versioned;
      if (chunk.drive == drive) area_bytes[versioned ? 1 : 0] += chunk.bytes;
    }
    const Bytes once = align_area(table_offset(drive, versions_ == 1 ? 0 : 2), area_bytes[0]);
    const Bytes slot_a = align_area(once + area_bytes[0], area_bytes[1]);
    const Bytes slot_b =
        versions_ == 1 ? slot_a : align_area(slot_a + area_bytes[1], area_bytes[1]);
    std::array<Bytes, 2> cursor{};
    for (ChunkPlace& chunk : chunks_) {
      if (chunk.drive != drive) continue;
      const bool versioned = parts_[static_cast<size_t>(chunk.part)].versioned;
      Bytes& at = cursor[versioned ? 1 : 0];
      chunk.offsets =
          versioned ? std::array{slot_a + at, slot_b + at} : std::array{once + at, once + at};
      at += chunk.bytes;
    }
    file_bytes_[static_cast<size_t>(drive)] = slot_b + area_bytes[1];
  }
}

uint64_t StripeMap::layout_hash() const {
  Hasher hasher;
  const auto add = [&](int64_t value) {
    hasher.update(std::as_bytes(std::span<const int64_t>(&value, 1)));
  };
  add(geometry_.chunk_bytes);
  add(drives());
  for (int i = 0; i < drives(); ++i) add(geometry_.weights[static_cast<size_t>(i)]);
  for (const PartSpec& part : parts_) {
    hasher.update(part.name);
    add(part.bytes);
    add(part.versioned ? 1 : 0);
  }
  // The hash differs between the modes, so that neither reads the other's files.
  if (versions_ == 1) hasher.update("one version");
  return hasher.digest();
}

}  // namespace longshore
