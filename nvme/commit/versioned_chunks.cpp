#include "nvme/commit/versioned_chunks.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/log.h"
#include "base/mutex.h"

namespace longshore {
namespace {

// Returns the remedy for error texts about damage.
std::string advice(const StripeMap& map) {
  return map.versions() == 1
             ? "Start the run again: it resumes from its newest checkpoint"
             : "Start the run again: it resumes from an older version if that is intact, else from "
               "a checkpoint";
}

}  // namespace

VersionedChunks::VersionedChunks(std::vector<Drive*> drives, const StripeMap* map,
                                 const RunKey& run, int32_t rank, int32_t ranks,
                                 ParallelFor parallel)
    : drives_(std::move(drives)),
      map_(map),
      identity_{run, rank, ranks, map->layout_hash(), map->geometry()},
      parallel_(std::move(parallel)),
      mover_(drives_, map, rank, parallel_, advice(*map)),
      log_(drives_, identity_),
      sums_(map->chunks().size()),
      written_(static_cast<size_t>(map->part_count())) {}

void VersionedChunks::begin(const Recovery& recovery) {
  LONGSHORE_CHECK(recovery.done());
  incarnation_ = recovery.incarnation();
  committed_.reset();
  pending_version_ = 0;
  if (map_->versions() == 1) log_.claim();
  if (!recovery.point()) return;
  committed_ = recovery.point()->point;
  table_roots_ = recovery.point()->table_roots;
  pending_version_ = committed_->version + 1;
}

// ---- Checksums ----

ChunkBinding VersionedChunks::binding_of(const PartSpec& part, const CommitPoint& point) const {
  // A part that is written once has the same binding in all versions and incarnations.
  return part.versioned ? ChunkBinding{point.data_incarnation, point.version} : ChunkBinding{};
}

ChunkBinding VersionedChunks::binding(int part, int slot) const {
  const PartSpec& spec = map_->part(part);
  if (!spec.versioned) return {};
  if (committed_ && slot == committed_->slot()) return binding_of(spec, *committed_);
  return {incarnation_, pending_version_};
}

uint64_t VersionedChunks::bind(uint64_t hash, int64_t chunk, ChunkBinding binding) const {
  const std::array<uint64_t, 7> bound = {hash,
                                         identity_.run.bits[0],
                                         identity_.run.bits[1],
                                         static_cast<uint64_t>(identity_.rank),
                                         static_cast<uint64_t>(chunk),
                                         binding.incarnation,
                                         binding.version};
  return hash64(std::as_bytes(std::span(bound)));
}

uint64_t VersionedChunks::sum(std::span<const std::byte> bytes, int64_t chunk,
                              ChunkBinding binding) const {
  return bind(hash64(bytes), chunk, binding);
}

uint64_t VersionedChunks::table_root(int drive, std::span<const std::byte> table,
                                     const CommitPoint& point) const {
  return sum(table, -1 - drive, {point.data_incarnation, point.version});
}

// ---- Reading and writing parts ----

int VersionedChunks::newest_slot(int part) const {
  if (!map_->part(part).versioned) return 0;
  const bool made = is_written(part);
  return static_cast<int>((made ? pending_version_ : committed_->version) % 2);
}

bool VersionedChunks::has_bytes(int part) const {
  return committed_.has_value() || is_written(part);
}

void VersionedChunks::start_read(int part, std::span<std::byte> memory, PartIo& io, bool urgent) {
  LONGSHORE_CHECK(has_bytes(part)) << map_->part(part).name << " was never written";
  const int slot = newest_slot(part);
  io.bound = binding(part, slot);
  mover_.start(BlockOp::Kind::kRead, part, slot, memory, io, urgent);
}

void VersionedChunks::finish_read(PartIo& io) {
  const auto slot = static_cast<size_t>(io.slot);
  mover_.finish_read(io, [&](int64_t chunk, std::span<const std::byte> bytes) {
    return sum(bytes, chunk, io.bound) == sums_[static_cast<size_t>(chunk)][slot];
  });
}

bool VersionedChunks::is_newest(const SealedPart& sealed) const {
  if (!has_bytes(sealed.part)) return false;
  const int slot = newest_slot(sealed.part);
  const ChunkBinding bound = binding(sealed.part, slot);
  const int64_t first = map_->first_chunk(sealed.part);
  for (size_t i = 0; i < sealed.hashes.size(); ++i) {
    const int64_t chunk = first + static_cast<int64_t>(i);
    if (bind(sealed.hashes[i], chunk, bound) !=
        sums_[static_cast<size_t>(chunk)][static_cast<size_t>(slot)]) {
      return false;
    }
  }
  return true;
}

void VersionedChunks::start_write(const SealedPart& sealed, PartIo& io) {
  const int part = sealed.part;
  const PartSpec& spec = map_->part(part);
  LONGSHORE_CHECK(!pending_) << "a commit is under way";
  LONGSHORE_CHECK(spec.versioned || !committed_) << spec.name << " is written once";
  const auto slot = static_cast<size_t>(spec.versioned ? pending_version_ % 2 : 0);
  const int64_t first = map_->first_chunk(part);
  const ChunkBinding bound =
      spec.versioned ? ChunkBinding{incarnation_, pending_version_} : ChunkBinding{};
  for (size_t i = 0; i < sealed.hashes.size(); ++i) {
    const int64_t chunk = first + static_cast<int64_t>(i);
    sums_[static_cast<size_t>(chunk)][slot] = bind(sealed.hashes[i], chunk, bound);
  }
  written_[static_cast<size_t>(part)] = 1;
  ++writes_in_flight_;
  mover_.start(BlockOp::Kind::kWrite, part, static_cast<int>(slot), sealed.memory, io);
}

void VersionedChunks::finish_write(PartIo& io) {
  const std::string failure = mover_.finish_write(io);
  --writes_in_flight_;
  if (failure.empty() || !keep_failure(failure)) return;
  log_warning(failure);  // a reader of the part may fail before the commit does
}

std::string VersionedChunks::failure() const {
  const MutexLock lock(failure_mutex_);
  return failure_;
}

bool VersionedChunks::keep_failure(const std::string& failure) {
  const MutexLock lock(failure_mutex_);
  if (!failure_.empty()) return false;
  failure_ = failure;
  return true;
}

}  // namespace longshore
