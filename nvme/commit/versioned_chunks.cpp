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

// The commit and recovery of VersionedChunks.

// ---- Commit ----

CommitPoint VersionedChunks::next_point(const DurableStep& record) const {
  CommitPoint point;
  point.incarnation = incarnation_;
  point.step = record.step;
  point.note = record.note;
  point.sequence = committed_ ? committed_->sequence + 1 : 0;
  bool any = !committed_;
  for (int part = 0; part < map_->part_count(); ++part) {
    any = any || (map_->part(part).versioned && is_written(part));
  }
  point.version = any ? pending_version_ : committed_->version;
  point.data_incarnation = any ? incarnation_ : committed_->data_incarnation;
  for (int part = 0; part < map_->part_count() && any; ++part) {
    const bool needed = map_->part(part).versioned || !committed_;
    LONGSHORE_CHECK(!needed || is_written(part))
        << map_->part(part).name << " is missing in version " << pending_version_;
  }
  return point;
}

std::vector<uint64_t> VersionedChunks::write_tables(const CommitPoint& point) {
  std::vector<BlockBuffer> tables;
  std::vector<uint64_t> roots;
  for (int drive = 0; drive < map_->drives(); ++drive) {
    tables.emplace_back(map_->table_bytes(drive));
  }
  for (size_t i = 0; i < map_->chunks().size(); ++i) {
    const ChunkPlace& chunk = map_->chunks()[i];
    const bool versioned = map_->part(chunk.part).versioned;
    const uint64_t sum = sums_[i][static_cast<size_t>(versioned ? point.slot() : 0)];
    std::memcpy(tables[static_cast<size_t>(chunk.drive)].bytes().data() +
                    chunk.table_index * static_cast<int64_t>(sizeof(sum)),
                &sum, sizeof(sum));
  }
  std::vector<Transfer> transfers(drives_.size());
  for (size_t i = 0; i < drives_.size(); ++i) {
    const int drive = static_cast<int>(i);
    roots.push_back(table_root(drive, tables[i].bytes(), point));
    transfers[i].kind = BlockOp::Kind::kWrite;
    transfers[i].offset = map_->table_offset(drive, point.slot());
    transfers[i].memory = tables[i].bytes();
    drives_[i]->start(transfers[i]);
  }
  wait_all(drives_, transfers);
  return roots;
}

int64_t VersionedChunks::prepare_commit(const DurableStep& record) {
  LONGSHORE_CHECK(map_->versions() == 2) << "one version is written over, not committed";
  LONGSHORE_CHECK(!pending_ && writes_in_flight_ == 0)
      << writes_in_flight_.load() << " writes in flight";
  LoggedPoint logged;
  logged.point = next_point(record);
  if (!failure().empty()) return -1;
  try {
    const bool new_version = !committed_ || logged.point.version != committed_->version;
    logged.table_roots = new_version ? write_tables(logged.point) : table_roots_;
    // HOST WAIT: the data must be durable before a manifest refers to it.
    if (new_version) flush_all(drives_);
    log_.write(logged);
  } catch (const Error& error) {
    // After a failed flush the durable state is unknown: only the last commit stays.
    keep_failure(error.what());
    return -1;
  }
  pending_ = std::move(logged);
  return static_cast<int64_t>(pending_->point.sequence);
}

void VersionedChunks::conclude_commit(int64_t least_vote) {
  if (const std::string cause = failure(); !cause.empty()) {
    throw IoError("the state could not be committed: " + cause + "; the last commit stays");
  }
  LONGSHORE_CHECK(pending_.has_value());
  if (least_vote < 0) {
    keep_failure("another rank failed");
    throw IoError("another rank could not commit the state; the last commit stays");
  }
  LONGSHORE_CHECK(least_vote == static_cast<int64_t>(pending_->point.sequence)) << least_vote;
  committed_ = pending_->point;
  table_roots_ = pending_->table_roots;
  pending_.reset();
  pending_version_ = committed_->version + 1;
  std::ranges::fill(written_, uint8_t{0});
}

void VersionedChunks::commit(const DurableStep& record, Agreement& agreement) {
  const int64_t vote = prepare_commit(record);
  conclude_commit(agreement.reduce({vote, 0, 0, 0}).least[0]);
}

void VersionedChunks::check_writes() const {
  const std::string cause = failure();
  if (cause.empty()) return;
  throw IoError("the state could not be written: " + cause +
                "; start the run again: it resumes from its newest checkpoint");
}

// ---- Recovery ----

Recovery VersionedChunks::make_recovery(std::span<std::byte> window, uint64_t random) {
  LONGSHORE_CHECK(static_cast<Bytes>(window.size()) >= 2 * map_->geometry().chunk_bytes);
  return Recovery(
      &log_, [this, window](const LoggedPoint& logged) { return verify(logged, window); }, random);
}

bool VersionedChunks::read_tables(const LoggedPoint& logged) {
  const auto slot = static_cast<size_t>(logged.point.slot());
  for (int drive = 0; drive < map_->drives(); ++drive) {
    const BlockBuffer table(map_->table_bytes(drive));
    Drive& file = *drives_[static_cast<size_t>(drive)];
    const Bytes offset = map_->table_offset(drive, logged.point.slot());
    file.read(offset, table.bytes());
    if (table_root(drive, table.bytes(), logged.point) !=
        logged.table_roots[static_cast<size_t>(drive)]) {
      log_warning(file.path() + ": the table of checksums at offset " + std::to_string(offset) +
                  " is not the one of version " + std::to_string(logged.point.version));
      return false;
    }
    for (size_t i = 0; i < map_->chunks().size(); ++i) {
      const ChunkPlace& chunk = map_->chunks()[i];
      if (chunk.drive != drive) continue;
      const size_t to = map_->part(chunk.part).versioned ? slot : 0;
      std::memcpy(&sums_[i][to],
                  table.bytes().data() + chunk.table_index * static_cast<int64_t>(sizeof(uint64_t)),
                  sizeof(uint64_t));
    }
  }
  return true;
}

bool VersionedChunks::verify_batch(const LoggedPoint& logged, std::span<const int64_t> chunks,
                                   std::span<std::byte> window) {
  const auto stride = static_cast<size_t>(map_->geometry().chunk_bytes);
  const auto slot = static_cast<size_t>(logged.point.slot());
  std::vector<Transfer> transfers(chunks.size());
  std::vector<char> whole(chunks.size(), 0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ChunkPlace& chunk = map_->chunks()[static_cast<size_t>(chunks[i])];
    transfers[i].offset = chunk.offsets[slot];
    transfers[i].memory = window.subspan(i * stride, static_cast<size_t>(chunk.bytes));
    drives_[static_cast<size_t>(chunk.drive)]->start(transfers[i]);
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ChunkPlace& chunk = map_->chunks()[static_cast<size_t>(chunks[i])];
    try {
      drives_[static_cast<size_t>(chunk.drive)]->wait(transfers[i]);
      whole[i] = 1;
    } catch (const DriveError& error) {
      log_warning(error.what());
    }
  }
  parallel_(static_cast<int64_t>(chunks.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const auto chunk = static_cast<size_t>(chunks[i]);
    const PartSpec& part = map_->part(map_->chunks()[chunk].part);
    const size_t at = part.versioned ? slot : 0;
    const uint64_t found = sum(transfers[i].memory, chunks[i], binding_of(part, logged.point));
    whole[i] = whole[i] != 0 && found == sums_[chunk][at];
  });
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (whole[i] != 0) continue;
    log_warning(mover_.describe(chunks[i], logged.point.slot()) + " do not belong to version " +
                std::to_string(logged.point.version) + ": the previous version is tried");
    return false;
  }
  return true;
}

bool VersionedChunks::verify(const LoggedPoint& logged, std::span<std::byte> window) {
  try {
    if (!read_tables(logged)) return false;
  } catch (const DriveError& error) {
    log_warning(error.what());
    return false;
  }
  const auto batch = static_cast<int64_t>(window.size()) / map_->geometry().chunk_bytes;
  const auto count = static_cast<int64_t>(map_->chunks().size());
  std::vector<int64_t> chunks;
  Progress progress("checking the state on the drives", count * map_->geometry().chunk_bytes);
  for (int64_t first = 0; first < count; first += batch) {
    chunks.clear();
    for (int64_t i = first; i < std::min(first + batch, count); ++i) chunks.push_back(i);
    if (!verify_batch(logged, chunks, window)) return false;
    progress.add(std::ssize(chunks) * map_->geometry().chunk_bytes);
  }
  return true;
}

}  // namespace longshore
