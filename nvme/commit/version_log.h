// VersionLog: reads, writes and voids one rank's manifests on all its drives. VersionedChunks owns
// it; one thread. Recovery decides across ranks which version they resume from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nvme/commit/manifest.h"
#include "nvme/drive/block_file.h"
#include "nvme/drive/drive.h"
#include "shard/durability.h"

namespace longshore {

// The fields that all manifests of this rank share.
struct LogIdentity {
  RunKey run;
  int32_t rank = 0;
  int32_t ranks = 1;
  uint64_t layout_hash = 0;
  Geometry geometry;
};

// A point that all drives of the rank hold, with the checksums of their checksum tables.
struct LoggedPoint {
  CommitPoint point;
  std::vector<uint64_t> table_roots;  // by drive
};

// Flushes all drives in parallel.
void flush_all(const std::vector<Drive*>& drives);

class VersionLog {
 public:
  // The drives must outlive the log.
  VersionLog(std::vector<Drive*> drives, const LogIdentity& identity);

  // Returns the points of the manifests, newest first; at most two. Flushes first: after a kill,
  // readable data may not be durable yet, and the next version overwrites its predecessor. Throws
  // CheckpointError if the files belong to another run or have another layout.
  std::vector<LoggedPoint> read();
  // Writes the point's manifest on all drives and flushes. The data must already be durable.
  void write(const LoggedPoint& logged);
  // Writes manifests that name this run as the owner and hold no version. No recovery uses them,
  // and other runs refuse the files.
  void claim();
  // Durably invalidates all manifests newer than `newest`; all manifests without it.
  void void_newer_than(std::optional<uint64_t> newest);
  // Returns the greatest sequence of any manifest that `read` found, on any drive; -1 without one.
  int64_t newest_seen() const { return newest_seen_; }

 private:
  std::optional<Manifest> read_copy(size_t drive, int copy);
  void check_run(const Manifest& manifest, size_t drive) const;
  void check_identity(const Manifest& manifest, size_t drive) const;
  void write_block(int copy, const std::vector<BlockBuffer>& blocks);

  std::vector<Drive*> drives_;
  LogIdentity identity_;
  int64_t newest_seen_ = -1;
};

// Recovery: finds the version from which a run resumes, the newest that is intact on every rank. It
// is a state machine without a communicator: it asks a question and gets the outcome over all
// ranks; `recover` drives it with an Agreement. One thread; the caller owns it.
//
//   propose  every rank offers its newest candidate and the newest manifest on any of its drives;
//            ranks with a newer candidate drop it; candidates with equal number but different
//            histories (incarnations) are dropped by all
//   verify   every rank checks all bytes of the candidate; if one rank fails, all drop it
//   void     every rank durably invalidates newer manifests before any rank writes, so that two
//            histories cannot mix; the outcome of this round is the new incarnation

class Recovery {
 public:
  // Returns whether all bytes of the point are intact on this rank's drives.
  using Verify = std::function<bool(const LoggedPoint&)>;

  // `log` must outlive the recovery. `random` is this start's own random number.
  Recovery(VersionLog* log, Verify verify, uint64_t random);

  bool done() const { return phase_ == Phase::kDone; }
  Ballot question();
  // Throws CheckpointError, on all ranks, if a committed state is intact nowhere.
  void answer(const Outcome& outcome);

  // Valid once done. Without a point nothing was ever committed, and the drives count as empty.
  const std::optional<LoggedPoint>& point() const { return point_; }
  uint64_t incarnation() const { return incarnation_; }

 private:
  enum class Phase : uint8_t { kPropose, kVerify, kVoid, kDone };
  void after_proposals(const Outcome& outcome);
  void drop_newer_than(int64_t sequence);
  [[noreturn]] void refuse() const;

  VersionLog* log_;
  Verify verify_;
  int64_t random_;
  std::vector<LoggedPoint> candidates_;  // newest first
  int64_t newest_anywhere_ = -1;
  bool damaged_ = false;  // a candidate was corrupt on some rank
  Phase phase_ = Phase::kPropose;
  std::optional<LoggedPoint> point_;
  uint64_t incarnation_ = 0;
};

// Runs the recovery to its end.
void recover(Recovery& recovery, Agreement& agreement);

}  // namespace longshore
