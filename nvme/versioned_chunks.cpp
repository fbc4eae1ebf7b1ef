#include "nvme/versioned_chunks.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/log.h"

namespace longshore {

void serial_for(int64_t count, const std::function<void(int64_t)>& work) {
  for (int64_t i = 0; i < count; ++i) work(i);
}

VersionedChunks::VersionedChunks(std::vector<Drive*> drives, const StripeMap* map,
                                 const RunKey& run, int32_t rank, int32_t ranks,
                                 ParallelFor parallel)
    : drives_(std::move(drives)),
      map_(map),
      identity_{run, rank, ranks, map->layout_hash(), map->geometry()},
      parallel_(std::move(parallel)),
      log_(drives_, identity_),
      sums_(map->chunks().size()),
      written_(static_cast<size_t>(map->part_count())) {
  LONGSHORE_CHECK(static_cast<int>(drives_.size()) == map->drives());
  for (int i = 0; i < map->drives(); ++i) {
    const Drive& drive = *drives_[static_cast<size_t>(i)];
    if (drive.size_bytes() >= map->file_bytes(i)) continue;
    throw CheckpointError(drive.path() + ": has " + std::to_string(drive.size_bytes()) +
                          " bytes, the state needs " + std::to_string(map->file_bytes(i)));
  }
}

void VersionedChunks::begin(const Recovery& recovery) {
  LONGSHORE_CHECK(recovery.done());
  incarnation_ = recovery.incarnation();
  committed_.reset();
  making_version_ = 0;
  if (!recovery.point()) return;
  committed_ = recovery.point()->point;
  table_roots_ = recovery.point()->table_roots;
  making_version_ = committed_->version + 1;
}

// ---- Checksums ----

ChunkBinding VersionedChunks::binding_of(const PartSpec& part, const CommitPoint& point) const {
  // What is written once is the same in all versions and incarnations.
  return part.versioned ? ChunkBinding{point.data_incarnation, point.version} : ChunkBinding{};
}

ChunkBinding VersionedChunks::binding(int part, int slot) const {
  const PartSpec& spec = map_->part(part);
  if (!spec.versioned) return {};
  if (committed_ && slot == committed_->slot()) return binding_of(spec, *committed_);
  return {incarnation_, making_version_};
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

std::string VersionedChunks::describe(int64_t index, int slot) const {
  const ChunkPlace& chunk = map_->chunks()[static_cast<size_t>(index)];
  return drives_[static_cast<size_t>(chunk.drive)]->path() + ": " + std::to_string(chunk.bytes) +
         " bytes at offset " + std::to_string(chunk.offsets[static_cast<size_t>(slot)]) + " (" +
         map_->part(chunk.part).name + ", rank " + std::to_string(identity_.rank) + ")";
}

// ---- Reading and writing parts ----

int VersionedChunks::newest_slot(int part) const {
  if (!map_->part(part).versioned) return 0;
  const bool made = is_written(part);
  return static_cast<int>((made ? making_version_ : committed_->version) % 2);
}

bool VersionedChunks::has_bytes(int part) const {
  return committed_.has_value() || is_written(part);
}

void VersionedChunks::prepare(int part, std::span<std::byte> memory, BlockOp::Kind kind, int slot,
                              PartIo& io, bool urgent) {
  LONGSHORE_CHECK(!io.active && static_cast<Bytes>(memory.size()) == map_->part(part).bytes)
      << map_->part(part).name << ": " << memory.size();
  const int64_t first = map_->first_chunk(part);
  io.part = part;
  io.memory = memory;
  io.transfers.resize(static_cast<size_t>(map_->first_chunk(part + 1) - first));
  io.active = true;
  for (size_t i = 0; i < io.transfers.size(); ++i) {
    const ChunkPlace& chunk = map_->chunks()[static_cast<size_t>(first) + i];
    Transfer& transfer = io.transfers[i];
    transfer = {};
    transfer.kind = kind;
    transfer.urgent = urgent;
    transfer.offset = chunk.offsets[static_cast<size_t>(slot)];
    transfer.memory =
        memory.subspan(static_cast<size_t>(chunk.part_offset), static_cast<size_t>(chunk.bytes));
    drives_[static_cast<size_t>(chunk.drive)]->start(transfer);
  }
}

void VersionedChunks::start_read(int part, std::span<std::byte> memory, PartIo& io, bool urgent) {
  LONGSHORE_CHECK(has_bytes(part)) << map_->part(part).name << " was never written";
  io.slot = newest_slot(part);
  io.bound = binding(part, io.slot);
  prepare(part, memory, BlockOp::Kind::kRead, io.slot, io, urgent);
}

void VersionedChunks::finish_read(PartIo& io) {
  LONGSHORE_CHECK(io.active);
  const auto first = static_cast<size_t>(map_->first_chunk(io.part));
  const auto slot = static_cast<size_t>(io.slot);
  std::vector<char> whole(io.transfers.size(), 0);
  std::vector<char> arrived(io.transfers.size(), 0);
  for (size_t i = 0; i < io.transfers.size(); ++i) {
    try {
      drives_[static_cast<size_t>(map_->chunks()[first + i].drive)]->wait(io.transfers[i]);
      arrived[i] = 1;
    } catch (const DriveError& error) {
      log_warning(error.what());
    }
  }
  io.active = false;
  parallel_(static_cast<int64_t>(io.transfers.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    whole[i] = arrived[i] != 0 && sum(io.transfers[i].memory, static_cast<int64_t>(first + i),
                                      io.bound) == sums_[first + i][slot];
  });
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] == 0) check_chunk(io, static_cast<int64_t>(i));
  }
}

// A read that went astray may be right the second time; what lies wrong on the drive stays wrong.
void VersionedChunks::check_chunk(PartIo& io, int64_t index) {
  const int slot = io.slot;
  const int64_t chunk_index = map_->first_chunk(io.part) + index;
  const ChunkPlace& chunk = map_->chunks()[static_cast<size_t>(chunk_index)];
  const std::span<std::byte> memory = io.transfers[static_cast<size_t>(index)].memory;
  drives_[static_cast<size_t>(chunk.drive)]->read(chunk.offsets[static_cast<size_t>(slot)], memory);
  if (sum(memory, chunk_index, io.bound) !=
      sums_[static_cast<size_t>(chunk_index)][static_cast<size_t>(slot)]) {
    throw CorruptStateError(
        describe(chunk_index, slot) +
        " are not what was written; the drive lost or changed them. Start again: "
        "an older version is used where it is whole, else a checkpoint");
  }
  ++repaired_reads_;
  log_warning(describe(chunk_index, slot) + " were wrong at first and right when read again");
}

void VersionedChunks::seal(int part, std::span<std::byte> memory, SealedPart& sealed) {
  LONGSHORE_CHECK(static_cast<Bytes>(memory.size()) == map_->part(part).bytes);
  const int64_t first = map_->first_chunk(part);
  const int64_t count = map_->first_chunk(part + 1) - first;
  sealed.part = part;
  sealed.memory = memory;
  sealed.hashes.resize(static_cast<size_t>(count));
  parallel_(count, [&](int64_t i) {
    const ChunkPlace& chunk = map_->chunks()[static_cast<size_t>(first + i)];
    sealed.hashes[static_cast<size_t>(i)] = hash64(
        memory.subspan(static_cast<size_t>(chunk.part_offset), static_cast<size_t>(chunk.bytes)));
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
  const auto slot = static_cast<size_t>(spec.versioned ? making_version_ % 2 : 0);
  const int64_t first = map_->first_chunk(part);
  const ChunkBinding bound =
      spec.versioned ? ChunkBinding{incarnation_, making_version_} : ChunkBinding{};
  for (size_t i = 0; i < sealed.hashes.size(); ++i) {
    const int64_t chunk = first + static_cast<int64_t>(i);
    sums_[static_cast<size_t>(chunk)][slot] = bind(sealed.hashes[i], chunk, bound);
  }
  written_[static_cast<size_t>(part)] = 1;
  ++writes_in_flight_;
  prepare(part, sealed.memory, BlockOp::Kind::kWrite, static_cast<int>(slot), io,
          /*urgent=*/false);
}

void VersionedChunks::finish_write(PartIo& io) {
  LONGSHORE_CHECK(io.active);
  const auto first = static_cast<size_t>(map_->first_chunk(io.part));
  for (size_t i = 0; i < io.transfers.size(); ++i) {
    try {
      drives_[static_cast<size_t>(map_->chunks()[first + i].drive)]->wait(io.transfers[i]);
    } catch (const Error& error) {
      if (!failure_.empty()) continue;
      failure_ = error.what();
      log_warning(failure_);  // whoever reads the part back meets the consequence first
    }
  }
  io.active = false;
  --writes_in_flight_;
}

bool VersionedChunks::write_finished(PartIo& io) {
  const auto first = static_cast<size_t>(map_->first_chunk(io.part));
  for (size_t i = 0; i < io.transfers.size(); ++i) {
    const auto drive = static_cast<size_t>(map_->chunks()[first + i].drive);
    if (!drives_[drive]->finished(io.transfers[i])) return false;
  }
  return true;
}

}  // namespace longshore
