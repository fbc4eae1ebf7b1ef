#include "nvme/commit/manifest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kMagic = 0x454d564e474e4f4cu;  // "LONGNVME"
constexpr uint32_t kFormat = 1;
constexpr size_t kNoteAt = 176;
constexpr size_t kChecksumAt = static_cast<size_t>(kBlockBytes) - sizeof(uint64_t);
static_assert(kNoteAt + static_cast<size_t>(kMaxNoteBytes) <= kChecksumAt);

template <typename T>
void put(std::span<std::byte> block, size_t at, T value) {
  std::memcpy(block.data() + at, &value, sizeof(T));
}

template <typename T>
T get(std::span<const std::byte> block, size_t at) {
  T value;
  std::memcpy(&value, block.data() + at, sizeof(T));
  return value;
}

bool is_plausible(const Manifest& manifest) {
  const Bytes chunk = manifest.geometry.chunk_bytes;
  return manifest.ranks >= 1 && manifest.rank >= 0 && manifest.rank < manifest.ranks &&
         manifest.drives >= 1 && manifest.drives <= kMaxDrives && manifest.drive >= 0 &&
         manifest.drive < manifest.drives && chunk >= kBlockBytes && chunk <= kGiB &&
         chunk % kBlockBytes == 0 && manifest.point.version <= manifest.point.sequence &&
         manifest.point.sequence <= static_cast<uint64_t>(INT64_MAX);
}

}  // namespace

void encode(const Manifest& manifest, std::span<std::byte> block) {
  const CommitPoint& point = manifest.point;
  LONGSHORE_CHECK(static_cast<Bytes>(block.size()) == kBlockBytes);
  LONGSHORE_CHECK(static_cast<Bytes>(point.note.size()) <= kMaxNoteBytes) << point.note.size();
  std::memset(block.data(), 0, block.size());
  put(block, 0, kMagic);
  put(block, 8, kFormat);
  put(block, 12, static_cast<uint32_t>(point.note.size()));
  put(block, 16, manifest.run.bits);
  put(block, 32, manifest.rank);
  put(block, 36, manifest.ranks);
  put(block, 40, manifest.drive);
  put(block, 44, manifest.drives);
  put(block, 48, point.sequence);
  put(block, 56, point.version);
  put(block, 64, point.incarnation);
  put(block, 72, point.data_incarnation);
  put(block, 80, manifest.layout_hash);
  put(block, 88, manifest.table_root);
  put(block, 96, point.step);
  put(block, 104, manifest.geometry.chunk_bytes);
  put(block, 112, manifest.geometry.weights);
  std::ranges::copy(std::as_bytes(std::span(point.note)), block.begin() + kNoteAt);
  put(block, kChecksumAt, hash64(block.first(kChecksumAt)));
}

std::optional<Manifest> decode(std::span<const std::byte> block) {
  if (static_cast<Bytes>(block.size()) != kBlockBytes || get<uint64_t>(block, 0) != kMagic ||
      get<uint64_t>(block, kChecksumAt) != hash64(block.first(kChecksumAt)) ||
      get<uint32_t>(block, 8) != kFormat) {
    return std::nullopt;
  }
  const auto note_bytes = get<uint32_t>(block, 12);
  if (note_bytes > static_cast<uint32_t>(kMaxNoteBytes)) return std::nullopt;
  Manifest manifest;
  manifest.run.bits = get<std::array<uint64_t, 2>>(block, 16);
  manifest.rank = get<int32_t>(block, 32);
  manifest.ranks = get<int32_t>(block, 36);
  manifest.drive = get<int32_t>(block, 40);
  manifest.drives = get<int32_t>(block, 44);
  manifest.layout_hash = get<uint64_t>(block, 80);
  manifest.table_root = get<uint64_t>(block, 88);
  manifest.geometry.chunk_bytes = get<Bytes>(block, 104);
  manifest.geometry.weights = get<std::array<uint32_t, kMaxDrives>>(block, 112);
  CommitPoint& point = manifest.point;
  point.sequence = get<uint64_t>(block, 48);
  point.version = get<uint64_t>(block, 56);
  point.incarnation = get<uint64_t>(block, 64);
  point.data_incarnation = get<uint64_t>(block, 72);
  point.step = get<int64_t>(block, 96);
  point.note.assign(reinterpret_cast<const char*>(block.data()) + kNoteAt, note_bytes);
  if (!is_plausible(manifest)) return std::nullopt;
  return manifest;
}

bool is_empty(std::span<const std::byte> block) {
  return std::ranges::all_of(block, [](std::byte b) { return b == std::byte{0}; });
}

std::optional<RunKey> claimed_run(std::span<const std::byte> block) {
  if (static_cast<Bytes>(block.size()) != kBlockBytes || get<uint64_t>(block, 0) != kMagic) {
    return std::nullopt;
  }
  return RunKey{get<std::array<uint64_t, 2>>(block, 16)};
}

int64_t digest_of(const CommitPoint& point) {
  const std::array<uint64_t, 5> fields = {point.sequence, point.version, point.incarnation,
                                          point.data_incarnation,
                                          static_cast<uint64_t>(point.step)};
  return static_cast<int64_t>(hash64(std::as_bytes(std::span(fields))) >> 1);
}

}  // namespace longshore
