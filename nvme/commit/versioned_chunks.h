// VersionedChunks: one rank's state on its drives, as parts with versions, every chunk checksummed.
// Between the store, which knows units and memory, and the drives. Owned by the store. Different
// parts may be read and written by different threads at once, one part may be read by several; a
// part is not written while it is read. has_bytes, is_written, start_read, start_write and
// conclude_commit take turns (under the store's mutex) where threads may meet in them; recovery has
// the object to itself.
//
// The newest bytes of a part are those of the committed version, or, once the part was written
// since, those of the version in the making; that one goes to the other slot. A commit ends the
// version in the making and begins none: with nothing written since the last commit it only records
// the step. Where the map keeps one version there is no commit: parts are written in place, the
// checksums live in memory alone, and no later start trusts the bytes.
//
// Checksums are made from the memory that is written, and bound to run, rank, incarnation, version
// and place: stale, misdirected and foreign bytes are found, not only flipped bits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/mutex.h"
#include "nvme/commit/recovery.h"
#include "nvme/commit/version_log.h"
#include "nvme/parts/part_mover.h"

namespace longshore {

class VersionedChunks {
 public:
  // Drives, map and `parallel` must outlive this. The drives' files have the map's sizes.
  VersionedChunks(std::vector<Drive*> drives, const StripeMap* map, const RunKey& run, int32_t rank,
                  int32_t ranks, ParallelFor parallel);

  // The recovery of this rank, to be driven with `recover` or by hand; then `begin` with it.
  // `window` (at least two chunks) is used to read everything once.
  Recovery make_recovery(std::span<std::byte> window, uint64_t random);
  // With one version kept, also marks the files as this run's.
  void begin(const Recovery& recovery);
  // What the run went on from, or was committed last; none before the first commit.
  const std::optional<CommitPoint>& committed() const { return committed_; }

  // Whether the part has bytes at all: every one has after the first commit.
  bool has_bytes(int part) const;
  // `urgent`: before all reads and writes that wait and are not.
  void start_read(int part, std::span<std::byte> memory, PartIo& io, bool urgent = false);
  // Waits and checks. Reads a chunk once more before it throws CorruptStateError.
  void finish_read(PartIo& io);
  void seal(int part, std::span<std::byte> memory, SealedPart& sealed) const {
    mover_.seal(part, memory, sealed);
  }
  // Whether the drives hold these bytes as the part's newest already.
  bool is_newest(const SealedPart& sealed) const;
  // Whether the part belongs to the version in the making already.
  bool is_written(int part) const { return written_[static_cast<size_t>(part)] != 0; }
  // Begins to write; the memory must not change until it ends. A part without versions may be
  // written only before the first commit.
  void start_write(const SealedPart& sealed, PartIo& io);
  void finish_write(PartIo& io);

  // Everything but the agreement: all writes must be finished. Returns the vote: the sequence that
  // is durable here, or -1 after a failure, which `conclude_commit` then throws.
  int64_t prepare_commit(const DurableStep& record);
  // With the least vote of all ranks. Throws where some rank failed: this generation is lost for
  // all.
  void conclude_commit(int64_t least_vote);
  void commit(const DurableStep& record, Agreement& agreement);
  // Throws what a finished write failed with; for whoever does not commit.
  void check_writes() const;

 private:
  ChunkBinding binding(int part, int slot) const;
  ChunkBinding binding_of(const PartSpec& part, const CommitPoint& point) const;
  uint64_t bind(uint64_t hash, int64_t chunk, ChunkBinding binding) const;
  uint64_t sum(std::span<const std::byte> bytes, int64_t chunk, ChunkBinding binding) const;
  int newest_slot(int part) const;
  uint64_t table_root(int drive, std::span<const std::byte> table, const CommitPoint& point) const;
  std::vector<uint64_t> write_tables(const CommitPoint& point);
  bool read_tables(const LoggedPoint& logged);
  bool verify(const LoggedPoint& logged, std::span<std::byte> window);
  bool verify_batch(const LoggedPoint& logged, std::span<const int64_t> chunks,
                    std::span<std::byte> window);
  CommitPoint next_point(const DurableStep& record) const;
  std::string failure() const;
  // Keeps the first failure; returns whether it is this one.
  bool keep_failure(const std::string& failure);

  std::vector<Drive*> drives_;
  const StripeMap* map_;
  LogIdentity identity_;
  ParallelFor parallel_;
  PartMover mover_;
  VersionLog log_;
  std::optional<CommitPoint> committed_;
  std::vector<uint64_t> table_roots_;   // of the committed version
  std::optional<LoggedPoint> pending_;  // prepared, not concluded
  uint64_t incarnation_ = 0;
  uint64_t making_version_ = 0;
  std::vector<std::array<uint64_t, 2>> sums_;  // by chunk and slot
  std::vector<uint8_t> written_;               // by part: since the last commit
  std::atomic<int64_t> writes_in_flight_ = 0;
  mutable Mutex failure_mutex_;
  // A write, flush or manifest that failed: nothing may be committed any more.
  std::string failure_ LONGSHORE_GUARDED_BY(failure_mutex_);
};

}  // namespace longshore
