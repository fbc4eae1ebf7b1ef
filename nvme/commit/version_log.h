// VersionLog: reads, writes and voids one rank's manifests on all its drives. VersionedChunks owns
// it; one thread. Decisions across ranks are made by Recovery.
#pragma once

#include <optional>
#include <vector>

#include "nvme/commit/manifest.h"
#include "nvme/drive/block_file.h"
#include "nvme/drive/drive.h"

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

}  // namespace longshore
