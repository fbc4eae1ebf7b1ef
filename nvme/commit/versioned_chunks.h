// VersionedChunks: one rank's state on its drives, as versioned parts with a checksum per chunk. It
// is the layer between the store, which knows units and memory, and the drives; the store owns it.
// Different threads may read and write different parts at once, and several may read one part; a
// part is not written while it is read. The store's mutex serialises has_bytes, is_written,
// start_read, start_write and conclude_commit. Recovery has exclusive use.
//
// A part's newest bytes are those of the committed version, or, if it was written since, those of
// the pending version in the other slot. A commit ends the pending version and begins none: if
// nothing was written since the last commit, it only records the step. With one version kept there
// is no commit: parts are written in place, the checksums stay in memory, and no later start trusts
// the bytes.
//
// Checksums are computed from the written memory and bound to run, rank, incarnation, version and
// chunk, so that stale, misdirected and foreign bytes are found as well as flipped bits.
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
#include "nvme/commit/version_log.h"
#include "nvme/parts/part_mover.h"

namespace longshore {

class VersionedChunks {
 public:
  // Drives, map and `parallel` must outlive this. The drives' files have the map's sizes.
  VersionedChunks(std::vector<Drive*> drives, const StripeMap* map, const RunKey& run, int32_t rank,
                  int32_t ranks, ParallelFor parallel);

  // Makes the recovery of this rank, to be driven with `recover` or by hand and then given to
  // `begin`. It reads everything once through `window` (at least two chunks).
  Recovery make_recovery(std::span<std::byte> window, uint64_t random);
  // Takes the result of the recovery. With one version kept, also marks the files as this run's.
  void begin(const Recovery& recovery);
  // Returns the resumed or the last commit; nothing before the first commit.
  const std::optional<CommitPoint>& committed() const { return committed_; }

  // Returns whether the part was ever written. All parts are after the first commit.
  bool has_bytes(int part) const;
  // An `urgent` read precedes all waiting transfers that are not urgent.
  void start_read(int part, std::span<std::byte> memory, PartIo& io, bool urgent = false);
  // Waits and checks. Reads a bad chunk once more before it throws CorruptStateError.
  void finish_read(PartIo& io);
  void seal(int part, std::span<std::byte> memory, SealedPart& sealed) const {
    mover_.seal(part, memory, sealed);
  }
  // Returns whether the drives already hold these bytes as the part's newest.
  bool is_newest(const SealedPart& sealed) const;
  // Returns whether the part was written in the pending version.
  bool is_written(int part) const { return written_[static_cast<size_t>(part)] != 0; }
  // Begins to write; the memory must not change until finish_write. A part without versions may be
  // written only before the first commit.
  void start_write(const SealedPart& sealed, PartIo& io);
  void finish_write(PartIo& io);

  // Does the local half of a commit; all writes must be finished. Returns the vote: the sequence
  // that is durable on this rank, or -1 after a failure, which `conclude_commit` then throws.
  int64_t prepare_commit(const DurableStep& record);
  // Completes the commit with the least vote of all ranks. Throws if a rank failed; no rank can
  // commit this version any more.
  void conclude_commit(int64_t least_vote);
  void commit(const DurableStep& record, Agreement& agreement);
  // Throws the failure of a finished write; for a store that does not commit.
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
  uint64_t pending_version_ = 0;
  std::vector<std::array<uint64_t, 2>> sums_;  // by chunk and slot
  std::vector<uint8_t> written_;               // by part: written since the last commit
  std::atomic<int64_t> writes_in_flight_ = 0;
  mutable Mutex failure_mutex_;
  // A write, flush or manifest that failed: nothing may be committed any more.
  std::string failure_ LONGSHORE_GUARDED_BY(failure_mutex_);
};

}  // namespace longshore
