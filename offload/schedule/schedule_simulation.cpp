#include "offload/schedule/schedule_simulation.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int32_t kNobody = -1;

class Simulation {
 public:
  Simulation(const StepSchedule& schedule, std::span<const double> seconds)
      : schedule_(schedule), seconds_(seconds), done_(schedule.ops.size(), false) {
    pass_.ops.resize(schedule.ops.size());
    lane_last_.fill(kNobody);
    const std::vector<size_t> tracks = tracks_of(schedule);
    for (size_t i = 0; i < tracks.size(); ++i) {
      tracks_[tracks[i]].push_back(static_cast<int32_t>(i));
    }
  }

  SimulatedPass run() {
    for (size_t i = 0; i < schedule_.ops.size(); ++i) run_next();
    return std::move(pass_);
  }

 private:
  struct Candidate {
    size_t track = 0;
    int32_t op = kNobody;
    double ready = 0.0;
    SimulatedOp times;  // its end is still to come

    // What begins first; of several that wait for their lane, who is served.
    std::tuple<double, bool, double, int32_t> key(const StepSchedule& schedule) const {
      const bool waits_for_bulk =
          schedule.ops[static_cast<size_t>(op)].kind != OpKind::kReadParameters;
      return {times.begin, waits_for_bulk, ready, op};
    }
  };

  // The operation that begins first of those whose turn it is in their track.
  void run_next() {
    std::optional<Candidate> first;
    for (size_t track = 0; track < kTrackCount; ++track) {
      std::optional<Candidate> next = next_of(track);
      if (!next) continue;
      if (!first || next->key(schedule_) < first->key(schedule_)) first = next;
    }
    LONGSHORE_CHECK(first) << "the schedule waits for itself";
    const auto op = static_cast<size_t>(first->op);
    const auto lane = static_cast<size_t>(lane_of(schedule_.ops[op].kind));
    first->times.end = first->times.begin + seconds_[op];
    pass_.ops[op] = first->times;
    pass_.busy[lane] += seconds_[op];
    pass_.seconds = std::max(pass_.seconds, first->times.end);
    done_[op] = true;
    lane_last_[lane] = first->op;
    track_last_[first->track] = first->op;
    ++next_[first->track];
  }

  // None where the track is done, or its next operation waits for one that has not begun.
  std::optional<Candidate> next_of(size_t track) const {
    if (next_[track] >= tracks_[track].size()) return std::nullopt;
    Candidate next{.track = track, .op = tracks_[track][next_[track]], .times = {}};
    const Op& op = schedule_.ops[static_cast<size_t>(next.op)];
    if (next_[track] > 0) wait_for(track_last_[track], next.times);
    for (int32_t before : op.after) {
      if (!done_[static_cast<size_t>(before)]) return std::nullopt;
      wait_for(before, next.times);
    }
    next.ready = next.times.begin;
    wait_for(lane_last_[static_cast<size_t>(lane_of(op.kind))], next.times);
    return next;
  }

  void wait_for(int32_t other, SimulatedOp& now) const {
    if (other == kNobody) return;
    const double end = pass_.ops[static_cast<size_t>(other)].end;
    if (now.held_by >= 0 && end <= now.begin) return;
    now.begin = std::max(now.begin, end);
    now.held_by = other;
  }

  const StepSchedule& schedule_;
  std::span<const double> seconds_;
  std::vector<bool> done_;
  std::array<std::vector<int32_t>, kTrackCount> tracks_;  // their operations
  std::array<size_t, kTrackCount> next_{};
  std::array<int32_t, kTrackCount> track_last_{};
  std::array<int32_t, kLaneCount> lane_last_{};
  SimulatedPass pass_;
};

}  // namespace

SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const double> seconds) {
  LONGSHORE_CHECK(seconds.size() == schedule.ops.size()) << seconds.size() << " times";
  for (size_t i = 0; i < seconds.size(); ++i) {
    LONGSHORE_CHECK(seconds[i] >= 0.0) << "op " << i << " takes " << seconds[i] << " s";
    for (int32_t before : schedule.ops[i].after) {
      LONGSHORE_CHECK(before < static_cast<int32_t>(i)) << "op " << i << " waits for op " << before;
    }
  }
  return Simulation(schedule, seconds).run();
}

std::vector<int32_t> critical_path(const SimulatedPass& pass) {
  if (pass.ops.empty()) return {};
  const auto last = std::ranges::max_element(pass.ops, {}, &SimulatedOp::end);
  std::vector<int32_t> path;
  for (auto op = static_cast<int32_t>(last - pass.ops.begin()); op >= 0;
       op = pass.ops[static_cast<size_t>(op)].held_by) {
    path.push_back(op);
  }
  std::ranges::reverse(path);
  return path;
}

}  // namespace longshore
