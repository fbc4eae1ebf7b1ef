#include "nvme/parts/part_mover.h"

#include "base/hash.h"
#include "base/log.h"

namespace longshore {

ParallelFor parallel_on(WorkerPool* pool) {
  return [pool](int64_t count, const std::function<void(int64_t)>& work) {
    pool->for_each_block(count, work);
  };
}

PartMover::PartMover(std::vector<Drive*> drives, const StripeMap* map, int32_t rank,
                     ParallelFor parallel, std::string advice)
    : drives_(std::move(drives)),
      map_(map),
      rank_(rank),
      parallel_(std::move(parallel)),
      advice_(std::move(advice)) {
  LONGSHORE_CHECK(static_cast<int>(drives_.size()) == map->drives());
  for (int i = 0; i < map->drives(); ++i) {
    const Drive& drive = *drives_[static_cast<size_t>(i)];
    if (drive.size_bytes() >= map->file_bytes(i)) continue;
    throw CheckpointError(drive.path() + ": has " + std::to_string(drive.size_bytes()) +
                          " bytes, the state needs " + std::to_string(map->file_bytes(i)));
  }
}

Drive& PartMover::drive_of(int64_t chunk) const {
  const ChunkPlace& place = map_->chunks()[static_cast<size_t>(chunk)];
  return *drives_[static_cast<size_t>(place.drive)];
}

std::string PartMover::describe(int64_t index, int slot) const {
  const ChunkPlace& chunk = map_->chunks()[static_cast<size_t>(index)];
  return drive_of(index).path() + ": " + std::to_string(chunk.bytes) + " bytes at offset " +
         std::to_string(chunk.offsets[static_cast<size_t>(slot)]) + " (" +
         map_->part(chunk.part).name + ", rank " + std::to_string(rank_) + ")";
}

void PartMover::start(BlockOp::Kind kind, int part, int slot, std::span<std::byte> memory,
                      PartIo& io, bool urgent) {
  LONGSHORE_CHECK(!io.active && static_cast<Bytes>(memory.size()) == map_->part(part).bytes)
      << map_->part(part).name << ": " << memory.size();
  const int64_t first = map_->first_chunk(part);
  io.part = part;
  io.memory = memory;
  io.slot = slot;
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

std::string PartMover::finish_write(PartIo& io) {
  LONGSHORE_CHECK(io.active);
  std::string failure;
  const int64_t first = map_->first_chunk(io.part);
  for (size_t i = 0; i < io.transfers.size(); ++i) {
    try {
      drive_of(first + static_cast<int64_t>(i)).wait(io.transfers[i]);
    } catch (const Error& error) {
      if (failure.empty()) failure = error.what();
    }
  }
  io.active = false;
  return failure;
}

void PartMover::finish_read(PartIo& io, const IsRight& is_right) {
  LONGSHORE_CHECK(io.active);
  const int64_t first = map_->first_chunk(io.part);
  std::vector<char> right(io.transfers.size(), 0);
  for (size_t i = 0; i < io.transfers.size(); ++i) {
    try {
      drive_of(first + static_cast<int64_t>(i)).wait(io.transfers[i]);
      right[i] = 1;
    } catch (const DriveError& error) {
      log_warning(error.what());
    }
  }
  io.active = false;
  parallel_(static_cast<int64_t>(io.transfers.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    right[i] = right[i] != 0 && is_right(first + index, io.transfers[i].memory);
  });
  for (size_t i = 0; i < right.size(); ++i) {
    if (right[i] == 0) read_again(io, static_cast<int64_t>(i), is_right);
  }
}

// The second read may succeed after a transient error; wrong data on the drive stays wrong.
void PartMover::read_again(const PartIo& io, int64_t index, const IsRight& is_right) {
  const int64_t chunk = map_->first_chunk(io.part) + index;
  const ChunkPlace& place = map_->chunks()[static_cast<size_t>(chunk)];
  const std::span<std::byte> memory = io.transfers[static_cast<size_t>(index)].memory;
  drive_of(chunk).read(place.offsets[static_cast<size_t>(io.slot)], memory);
  const std::string what = describe(chunk, io.slot);
  if (!is_right(chunk, memory)) {
    throw CorruptStateError(what + " are not what was written; the drive lost or changed them. " +
                            advice_);
  }
  log_warning(what + " were wrong at first and right when read again");
}

void PartMover::seal(int part, std::span<std::byte> memory, SealedPart& sealed) const {
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

}  // namespace longshore
