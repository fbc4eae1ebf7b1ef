#include "nvme/commit/recovery.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {
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
