// Recovery: which version a run goes on from: the newest that is whole on every rank. A state
// machine without a communicator: it asks a question, is told the outcome over all ranks, and asks
// again; `recover` drives it with an Agreement. One thread.
//
//   propose  every rank names its newest candidate, and the newest manifest on any of its drives; a
//            rank with a newer candidate drops it; candidates of one number but different histories
//            (incarnations) are dropped by all
//   verify   every rank checks all bytes of the candidate; one bad rank, and all drop it
//   void     every rank makes newer manifests invalid, durably, before anybody writes: else two
//            histories could mix. The outcome of this round is the new incarnation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nvme/commit/version_log.h"
#include "shard/agreement.h"

namespace longshore {

class Recovery {
 public:
  // Whether all bytes of the point are as they were written, on this rank's drives.
  using Verify = std::function<bool(const LoggedPoint&)>;

  // `log` must outlive the recovery. `random` is this start's own random number.
  Recovery(VersionLog* log, Verify verify, uint64_t random);

  bool done() const { return phase_ == Phase::kDone; }
  Ballot question();
  // CheckpointError, on all ranks, where a state that was acknowledged is whole nowhere.
  void answer(const Outcome& outcome);

  // Valid once done. No point: nothing was ever acknowledged, and the drives are as new.
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
  bool damaged_ = false;  // a candidate's bytes were wrong on some rank
  Phase phase_ = Phase::kPropose;
  std::optional<LoggedPoint> point_;
  uint64_t incarnation_ = 0;
};

// Runs the recovery to its end.
void recover(Recovery& recovery, Agreement& agreement);

}  // namespace longshore
