#include "offload/engine/step_totals.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr size_t kLoss = kValueCount<LossSum>;
constexpr size_t kScalars = kLoss + 2;  // the loss, stop, save
constexpr size_t kTimes = kValueCount<RankTimes>;

}  // namespace

SlowestRank slowest_of(const std::vector<RankTimes>& times) {
  LONGSHORE_CHECK(!times.empty());
  const auto slowest = std::ranges::min_element(times, {}, &RankTimes::waited);
  const bool computes = slowest->computed >= slowest->updated;
  return {Rank(static_cast<int32_t>(slowest - times.begin())), computes ? "compute" : "optimizer",
          computes ? slowest->computed : slowest->updated};
}

StepTotals sum_over_ranks(const RankGroups& groups, const StepTotals& mine) {
  if (groups.all == nullptr) return mine;
  const size_t units = mine.unit_squares.size();
  const auto ranks = static_cast<size_t>(groups.topology.ranks);
  const size_t routers = mine.routers.size();
  std::vector<double> values(kScalars + units + ranks * kTimes + routers, 0.0);
  std::ranges::copy(packed_values(mine.loss), values.begin());
  values[kLoss] = mine.stop ? 1.0 : 0.0;
  values[kLoss + 1] = mine.save ? 1.0 : 0.0;
  // Replicas hold equal gradients, so only the first one contributes.
  if (groups.first_replica()) std::ranges::copy(mine.unit_squares, values.begin() + kScalars);
  const auto times = std::span(values).subspan(kScalars + units, ranks * kTimes);
  const auto chosen = std::span(values).last(routers);
  std::ranges::copy(mine.routers, chosen.begin());
  const size_t place = static_cast<size_t>(groups.rank.value) * kTimes;
  std::ranges::copy(packed_values(mine.times.front()), times.subspan(place).begin());

  groups.all->all_reduce(values, {"the step's totals", std::nullopt}).wait();

  StepTotals totals;
  totals.loss = unpacked_values<LossSum>(values);
  totals.stop = values[kLoss] > 0.0;
  totals.save = values[kLoss + 1] > 0.0;
  const auto squares = std::span(values).subspan(kScalars, units);
  totals.unit_squares.assign(squares.begin(), squares.end());
  totals.routers.assign(chosen.begin(), chosen.end());
  for (size_t i = 0; i < ranks; ++i) {
    totals.times.push_back(unpacked_values<RankTimes>(times.subspan(i * kTimes, kTimes)));
  }
  return totals;
}

LossSum sum_over_ranks(const RankGroups& groups, const LossSum& mine) {
  if (groups.all == nullptr) return mine;
  std::array<double, kLoss> values = packed_values(mine);
  groups.all->all_reduce(values, {"the evaluation's loss", std::nullopt}).wait();
  return unpacked_values<LossSum>(values);
}

}  // namespace longshore
