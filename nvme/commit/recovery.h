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
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nvme/commit/version_log.h"
#include "shard/durability.h"

namespace longshore {

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

  // Valid once done. No point means that nothing was ever committed and the drives are as new.
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
