// VersionLog: one rank's manifests on all its drives: reads, writes and voids them. Owned by
// VersionedChunks; one thread. It decides nothing across ranks: Recovery does.
#pragma once

#include <optional>
#include <vector>

#include "nvme/commit/manifest.h"
#include "nvme/drive/block_buffer.h"
#include "nvme/drive/drive.h"

namespace longshore {

// What every manifest of this rank has in common.
struct LogIdentity {
  RunKey run;
  int32_t rank = 0;
  int32_t ranks = 1;
  uint64_t layout_hash = 0;
  Geometry geometry;
};

// A point that all drives of the rank hold, with the checksums of their tables.
struct LoggedPoint {
  CommitPoint point;
  std::vector<uint64_t> table_roots;  // by drive
};

// Flushes all drives, side by side.
void flush_all(const std::vector<Drive*>& drives);

class VersionLog {
 public:
  // The drives must outlive the log.
  VersionLog(std::vector<Drive*> drives, const LogIdentity& identity);

  // The points of the manifests, newest first; at most two. Flushes first: after a kill what can be
  // read may not be durable yet, and the next version overwrites what is behind it. CheckpointError
  // where the files are another run's, or were made for another layout.
  std::vector<LoggedPoint> read();
  // Writes the point's manifest on all drives and flushes. The data must be durable.
  void write(const LoggedPoint& logged);
  // Writes manifests that say whose the files are and that they hold no version: nobody recovers
  // anything from them, and other runs are refused.
  void claim();
  // Makes all manifests newer than `newest` (all of them without it) invalid, durably.
  void void_newer_than(std::optional<uint64_t> newest);
  // The greatest sequence of a manifest that `read` found on any drive, whether the others have it
  // or not; -1 without one.
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

}  // namespace longshore
