#include "bench/lab/rank_simulation.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/errors.h"
#include "bench/lab/draws.h"

namespace longshore {
namespace {

constexpr uint32_t kGrains = 1 << 16;

// One rank's clock of every lane, and the end times of its operations.
struct RankClock {
  std::array<double, kLaneCount> lane = {};
  std::vector<double> end;
};

// The link that all collectives share; each takes the time that earlier ones left free.
class SharedLink {
 public:
  // Returns the time at which `seconds` of the link have passed since `begin`.
  double take(double begin, double seconds) {
    if (seconds == 0.0) return begin;
    const auto first = std::ranges::find_if(busy_, [&](const Busy& b) { return b.end > begin; });
    auto behind = first;
    double end = begin, left = seconds;
    for (; behind != busy_.end() && behind->begin - end < left; ++behind) {
      left -= std::max(0.0, behind->begin - end);
      end = behind->end;
    }
    end += left;
    const double busy_since = first == behind ? begin : std::min(begin, first->begin);
    busy_.insert(busy_.erase(first, behind), {busy_since, end});
    return end;
  }

 private:
  struct Busy {
    double begin = 0.0, end = 0.0;
  };
  std::vector<Busy> busy_;  // ordered and disjoint
};

}  // namespace

double simulate_ranks(const TimedStep& step, const SimulatedRanks& how) {
  const std::vector<Op>& ops = step.schedule.ops;
  std::vector<RankClock> clocks(static_cast<size_t>(how.ranks));
  for (RankClock& clock : clocks) clock.end.resize(ops.size());
  Draws draws(how.seed, 0);
  const size_t shard_ranks = static_cast<size_t>(how.shard_ranks > 0 ? how.shard_ranks : how.ranks);
  LONGSHORE_CHECK(!how.one_link || shard_ranks == clocks.size()) << shard_ranks << " shard";
  SharedLink link;
  std::vector<double> begin(clocks.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto lane = static_cast<size_t>(lane_of(ops[i].kind));
    LONGSHORE_CHECK(is_one_track(static_cast<Lane>(lane))) << name_of(ops[i].kind);
    for (size_t rank = 0; rank < clocks.size(); ++rank) {
      begin[rank] = clocks[rank].lane[lane];
      for (const int32_t before : ops[i].after) {
        begin[rank] = std::max(begin[rank], clocks[rank].end[static_cast<size_t>(before)]);
      }
    }
    size_t meet = 1;
    if (ops[i].kind == OpKind::kGather) meet = shard_ranks;
    if (ops[i].kind == OpKind::kReduce) meet = clocks.size();
    for (size_t first = 0; first < clocks.size(); first += meet) {
      const auto group = begin.begin() + static_cast<std::ptrdiff_t>(first);
      const double last = *std::max_element(group, group + static_cast<std::ptrdiff_t>(meet));
      // A collective takes the same time on all of its ranks.
      double seconds = step.seconds[i] * (1.0 + how.jitter * draws.below(kGrains) / kGrains);
      const bool slow = lane == static_cast<size_t>(Lane::kCompute) && first + 1 == clocks.size();
      if (slow) seconds *= 1.0 + how.slow_rank;
      const double end = how.one_link && meet > 1 ? link.take(last, seconds) : last + seconds;
      for (size_t rank = first; rank < first + meet; ++rank) {
        clocks[rank].end[i] = clocks[rank].lane[lane] = end;
      }
    }
  }
  double last = 0.0;
  for (const RankClock& clock : clocks) last = std::max(last, std::ranges::max(clock.end));
  return last;
}

}  // namespace longshore
