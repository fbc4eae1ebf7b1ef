// DerivedWaits: what an operation waits for, from what it and earlier operations access: a reader
// waits for the last writer, a writer also for the readers since that write. Waits that tracks or
// other waits imply are left out. The builder owns it; the validator has rules and an order of its
// own (HappensBefore). One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

class DerivedWaits {
 public:
  // Adds the next operation and returns its waits, sorted.
  std::vector<int32_t> add(const Op& op) {
    std::vector<int32_t> wanted;
    for (const Access& access : op.accesses) {
      const Use& use = use_of(access.resource);
      if (use.writer != kNone) wanted.push_back(use.writer);
      if (access.writes) wanted.insert(wanted.end(), use.readers.begin(), use.readers.end());
    }
    const auto id = static_cast<int32_t>(done_.size());
    for (const Access& access : op.accesses) {
      Use& use = use_of(access.resource);
      if (access.writes) use = {.writer = id};
      if (!access.writes) use.readers.push_back(id);
    }
    return needed(turns_.next(op.kind), std::move(wanted));
  }

 private:
  static constexpr int32_t kNone = -1;
  // The last operation that wrote a resource, and those that read it since.
  struct Use {
    int32_t writer = kNone;
    std::vector<int32_t> readers = {};
  };
  // By track: the last operation that is done; all earlier ones of the track are done too.
  using Done = std::array<int32_t, kTrackCount>;

  Use& use_of(const Resource& resource) {
    std::vector<Use>& uses = uses_.at(static_cast<size_t>(resource.memory));
    const auto number = static_cast<size_t>(resource.number);
    if (uses.size() <= number) uses.resize(number + 1);
    return uses[number];
  }

  // Adds the next operation and returns those of `wanted` that nothing else implies.
  std::vector<int32_t> needed(size_t track, std::vector<int32_t> wanted) {
    std::ranges::sort(wanted, std::greater());
    Done done = ends_[track] == kNone ? nothing_done() : done_at(ends_[track]);
    std::vector<int32_t> waits;
    // Only a later wait can imply an earlier one.
    for (const int32_t wait : wanted) {
      if (done[tracks_[static_cast<size_t>(wait)]] >= wait) continue;
      std::ranges::transform(done, done_at(wait), done.begin(), std::ranges::max);
      waits.push_back(wait);
    }
    done[track] = ends_[track] = static_cast<int32_t>(done_.size());
    tracks_.push_back(track);
    done_.push_back(done);
    std::ranges::reverse(waits);
    return waits;
  }

  static Done nothing_done() {
    Done nothing;
    nothing.fill(kNone);
    return nothing;
  }
  const Done& done_at(int32_t op) const { return done_[static_cast<size_t>(op)]; }

  std::array<std::vector<Use>, kMemoryCount> uses_;  // by memory and number
  TrackTurns turns_;
  Done ends_ = nothing_done();  // by track: its last operation
  std::vector<size_t> tracks_;  // by operation
  std::vector<Done> done_;      // by operation: what is done once it is
};

}  // namespace longshore
