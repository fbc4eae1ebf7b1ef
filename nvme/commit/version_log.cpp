#include "nvme/commit/version_log.h"

#include <algorithm>

#include "base/errors.h"
#include "base/log.h"

namespace longshore {
namespace {

Bytes offset_of(int copy) {
  return copy * kManifestStride;
}

int copy_of(uint64_t sequence) {
  return static_cast<int>(sequence % kManifestCopies);
}

}  // namespace

void flush_all(const std::vector<Drive*>& drives) {
  std::vector<Transfer> transfers(drives.size());
  for (size_t i = 0; i < drives.size(); ++i) {
    transfers[i].kind = BlockOp::Kind::kFlush;
    drives[i]->start(transfers[i]);
  }
  wait_all(drives, transfers);
}

VersionLog::VersionLog(std::vector<Drive*> drives, const LogIdentity& identity)
    : drives_(std::move(drives)), identity_(identity) {
  LONGSHORE_CHECK(!drives_.empty() && drives_.size() <= kMaxDrives) << drives_.size();
}

std::optional<Manifest> VersionLog::read_copy(size_t drive, int copy) {
  const BlockBuffer block(kBlockBytes);
  try {
    drives_[drive]->read(offset_of(copy), block.bytes());
  } catch (const DriveError& error) {
    log_warning(error.what());
    return std::nullopt;
  }
  const std::optional<Manifest> manifest = decode(block.bytes());
  if (!manifest) {
    if (!is_empty(block.bytes())) {
      log_warning(drives_[drive]->path() + ": the manifest at offset " +
                  std::to_string(offset_of(copy)) + " is damaged; the other copy is used");
    }
    return std::nullopt;
  }
  check_identity(*manifest, drive);
  if (manifest->point.step == kNoStep || copy_of(manifest->point.sequence) != copy) {
    return std::nullopt;
  }
  return manifest;
}

void VersionLog::check_run(const Manifest& manifest, size_t drive) const {
  if (manifest.run != identity_.run) {
    throw CheckpointError(drives_[drive]->path() +
                          ": holds the state of another run; remove it, or give this run " +
                          "another directory in offload.nvme");
  }
}

void VersionLog::check_identity(const Manifest& manifest, size_t drive) const {
  check_run(manifest, drive);
  const std::string& path = drives_[drive]->path();
  if (manifest.rank != identity_.rank || manifest.ranks != identity_.ranks ||
      manifest.drive != static_cast<int32_t>(drive) ||
      manifest.drives != static_cast<int32_t>(drives_.size())) {
    throw CheckpointError(
        path + ": holds drive " + std::to_string(manifest.drive + 1) + " of " +
        std::to_string(manifest.drives) + " of rank " + std::to_string(manifest.rank) + " of " +
        std::to_string(manifest.ranks) + ", and is used as drive " + std::to_string(drive + 1) +
        " of " + std::to_string(drives_.size()) + " of rank " + std::to_string(identity_.rank) +
        " of " + std::to_string(identity_.ranks) +
        "; resume from a checkpoint, or use the ranks and directories that wrote it");
  }
  if (manifest.layout_hash != identity_.layout_hash || manifest.geometry != identity_.geometry) {
    throw CheckpointError(path +
                          ": was made for another model, state format, grouping of units or "
                          "offload.nvme_versions; resume from a checkpoint, or use the run file "
                          "that wrote it");
  }
}

std::vector<LoggedPoint> VersionLog::read() {
  flush_all(drives_);
  std::vector<LoggedPoint> points;
  for (int copy = 0; copy < kManifestCopies; ++copy) {
    LoggedPoint logged;
    bool common = true;
    for (size_t drive = 0; drive < drives_.size(); ++drive) {
      const std::optional<Manifest> manifest = read_copy(drive, copy);
      common = common && manifest &&
               (drive == 0 || digest_of(manifest->point) == digest_of(logged.point));
      if (!manifest) continue;
      newest_seen_ = std::max(newest_seen_, static_cast<int64_t>(manifest->point.sequence));
      if (drive == 0) logged.point = manifest->point;
      logged.table_roots.push_back(manifest->table_root);
    }
    if (common) points.push_back(std::move(logged));
  }
  std::ranges::sort(points, [](const LoggedPoint& a, const LoggedPoint& b) {
    return a.point.sequence > b.point.sequence;
  });
  return points;
}

void VersionLog::write_block(int copy, const std::vector<BlockBuffer>& blocks) {
  std::vector<Transfer> transfers(drives_.size());
  for (size_t i = 0; i < drives_.size(); ++i) {
    transfers[i].kind = BlockOp::Kind::kWrite;
    transfers[i].offset = offset_of(copy);
    transfers[i].memory = blocks[i].bytes();
    drives_[i]->start(transfers[i]);
  }
  wait_all(drives_, transfers);
  flush_all(drives_);
}

void VersionLog::write(const LoggedPoint& logged) {
  LONGSHORE_CHECK(logged.table_roots.size() == drives_.size());
  std::vector<BlockBuffer> blocks;
  for (size_t i = 0; i < drives_.size(); ++i) {
    const Manifest manifest = {.run = identity_.run,
                               .rank = identity_.rank,
                               .ranks = identity_.ranks,
                               .drive = static_cast<int32_t>(i),
                               .drives = static_cast<int32_t>(drives_.size()),
                               .layout_hash = identity_.layout_hash,
                               .table_root = logged.table_roots[i],
                               .geometry = identity_.geometry,
                               .point = logged.point};
    blocks.emplace_back(kBlockBytes);
    encode(manifest, blocks.back().bytes());
  }
  write_block(copy_of(logged.point.sequence), blocks);
}

void VersionLog::claim() {
  LoggedPoint nothing;
  nothing.point.step = kNoStep;
  nothing.table_roots.resize(drives_.size());
  write(nothing);
}

void VersionLog::void_newer_than(std::optional<uint64_t> newest) {
  for (int copy = 0; copy < kManifestCopies; ++copy) {
    if (newest && copy_of(*newest) == copy) continue;
    bool newer = false;
    for (size_t drive = 0; drive < drives_.size(); ++drive) {
      const std::optional<Manifest> manifest = read_copy(drive, copy);
      newer = newer || (manifest && (!newest || manifest->point.sequence > *newest));
    }
    if (!newer) continue;
    std::vector<BlockBuffer> zeros;
    for (size_t i = 0; i < drives_.size(); ++i) zeros.emplace_back(kBlockBytes);
    write_block(copy, zeros);
  }
}

namespace {

// Indices on the ballot.
constexpr size_t kSequence = 0;  // of the candidate; -1 without one
constexpr size_t kDigest = 1;
constexpr size_t kWhole = 2;  // in verify: the candidate is intact
constexpr size_t kSeen = 2;   // in propose: newest on any drive; -1 without one
constexpr size_t kRandom = 3;

}  // namespace

Recovery::Recovery(VersionLog* log, Verify verify, uint64_t random)
    : log_(log),
      verify_(std::move(verify)),
      random_(static_cast<int64_t>(random >> 1)),
      candidates_(log_->read()) {}

Ballot Recovery::question() {
  Ballot ballot{};
  ballot[kSequence] = -1;
  ballot[kRandom] = random_;
  if (!candidates_.empty()) {
    ballot[kSequence] = static_cast<int64_t>(candidates_.front().point.sequence);
    ballot[kDigest] = digest_of(candidates_.front().point);
  }
  if (phase_ == Phase::kPropose) ballot[kSeen] = log_->newest_seen();
  if (phase_ == Phase::kVerify) ballot[kWhole] = verify_(candidates_.front()) ? 1 : 0;
  if (phase_ == Phase::kVoid) {
    log_->void_newer_than(point_ ? std::optional(point_->point.sequence) : std::nullopt);
  }
  return ballot;
}

void Recovery::answer(const Outcome& outcome) {
  switch (phase_) {
    case Phase::kPropose:
      after_proposals(outcome);
      return;
    case Phase::kVerify:
      if (outcome.least[kWhole] == 1) {
        point_ = candidates_.front();
        phase_ = Phase::kVoid;
      } else {
        damaged_ = true;
        candidates_.erase(candidates_.begin());
        phase_ = Phase::kPropose;
      }
      return;
    case Phase::kVoid:
      incarnation_ = static_cast<uint64_t>(outcome.greatest[kRandom]);
      phase_ = Phase::kDone;
      return;
    case Phase::kDone:
      LONGSHORE_CHECK(false) << "the recovery is over";
  }
}

void Recovery::after_proposals(const Outcome& outcome) {
  newest_anywhere_ = std::max(newest_anywhere_, outcome.greatest[kSeen]);
  if (outcome.least[kSequence] < 0) {
    // Commit 1 is written only after commit 0 was committed everywhere, so state was lost.
    if (newest_anywhere_ >= 1 || damaged_) refuse();
    phase_ = Phase::kVoid;
    return;
  }
  if (!outcome.unanimous(kSequence)) {
    drop_newer_than(outcome.least[kSequence]);
  } else if (!outcome.unanimous(kDigest)) {
    drop_newer_than(outcome.least[kSequence] - 1);
  } else {
    phase_ = Phase::kVerify;
  }
}

void Recovery::drop_newer_than(int64_t sequence) {
  std::erase_if(candidates_, [&](const LoggedPoint& candidate) {
    return static_cast<int64_t>(candidate.point.sequence) > sequence;
  });
}

void Recovery::refuse() const {
  throw CheckpointError(
      "the state on the drives of offload.nvme cannot be recovered: commit " +
      std::to_string(newest_anywhere_) +
      " was reached, and no commit is intact on all ranks (the lines above name files and "
      "offsets); check that all directories of offload.nvme are mounted and in their order; "
      "otherwise resume from a checkpoint with checkpoint.resume = \"DIRECTORY\", or start over "
      "with \"never\"");
}

void recover(Recovery& recovery, Agreement& agreement) {
  while (!recovery.done()) recovery.answer(agreement.reduce(recovery.question()));
}

}  // namespace longshore
