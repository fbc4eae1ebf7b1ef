#include "offload/engine/step_totals.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr size_t kLoss = 18;            // values of a LossSum
constexpr size_t kScalars = kLoss + 2;  // the loss, stop, save
constexpr size_t kTimes = 4;            // values per rank

void put(const LossSum& loss, std::span<double> values) {
  const PreferenceSums& pairs = loss.preference;
  const std::array<double, kLoss> all = {loss.loss,
                                         static_cast<double>(loss.trained),
                                         static_cast<double>(pairs.pairs),
                                         static_cast<double>(pairs.wins),
                                         static_cast<double>(pairs.chosen),
                                         static_cast<double>(pairs.rejected),
                                         pairs.chosen_rewards,
                                         pairs.rejected_rewards,
                                         pairs.chosen_logps,
                                         pairs.rejected_logps,
                                         pairs.kls,
                                         static_cast<double>(loss.policy.tokens),
                                         static_cast<double>(loss.policy.clipped),
                                         loss.policy.ratios,
                                         static_cast<double>(loss.tokens.hits),
                                         static_cast<double>(loss.tokens.compared),
                                         static_cast<double>(loss.distill.tokens),
                                         loss.distill.kl};
  std::ranges::copy(all, values.begin());
}

LossSum loss_of(std::span<const double> values) {
  return {.loss = values[0],
          .trained = static_cast<int64_t>(values[1]),
          .preference = {.pairs = static_cast<int64_t>(values[2]),
                         .wins = static_cast<int64_t>(values[3]),
                         .chosen = static_cast<int64_t>(values[4]),
                         .rejected = static_cast<int64_t>(values[5]),
                         .chosen_rewards = values[6],
                         .rejected_rewards = values[7],
                         .chosen_logps = values[8],
                         .rejected_logps = values[9],
                         .kls = values[10]},
          .policy = {.tokens = static_cast<int64_t>(values[11]),
                     .clipped = static_cast<int64_t>(values[12]),
                     .ratios = values[13]},
          .tokens = {.hits = static_cast<int64_t>(values[14]),
                     .compared = static_cast<int64_t>(values[15])},
          .distill = {.tokens = static_cast<int64_t>(values[16]), .kl = values[17]}};
}

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
  put(mine.loss, values);
  values[kLoss] = mine.stop ? 1.0 : 0.0;
  values[kLoss + 1] = mine.save ? 1.0 : 0.0;
  // Replicas hold equal gradients, so only the first one contributes.
  if (groups.first_replica()) std::ranges::copy(mine.unit_squares, values.begin() + kScalars);
  const auto times = std::span(values).subspan(kScalars + units, ranks * kTimes);
  const auto chosen = std::span(values).last(routers);
  std::ranges::copy(mine.routers, chosen.begin());
  const RankTimes& own = mine.times.front();
  const size_t place = static_cast<size_t>(groups.rank.value) * kTimes;
  times[place] = own.seconds;
  times[place + 1] = own.waited;
  times[place + 2] = own.updated;
  times[place + 3] = own.computed;

  groups.all->all_reduce(values, {"the step's totals", std::nullopt}).wait();

  StepTotals totals;
  totals.loss = loss_of(values);
  totals.stop = values[kLoss] > 0.0;
  totals.save = values[kLoss + 1] > 0.0;
  const auto squares = std::span(values).subspan(kScalars, units);
  totals.unit_squares.assign(squares.begin(), squares.end());
  totals.routers.assign(chosen.begin(), chosen.end());
  for (size_t i = 0; i < ranks; ++i) {
    const auto of_rank = times.subspan(i * kTimes, kTimes);
    totals.times.push_back({of_rank[0], of_rank[1], of_rank[2], of_rank[3]});
  }
  return totals;
}

LossSum sum_over_ranks(const RankGroups& groups, const LossSum& mine) {
  if (groups.all == nullptr) return mine;
  std::vector<double> values(kLoss);
  put(mine, values);
  groups.all->all_reduce(values, {"the evaluation's loss", std::nullopt}).wait();
  return loss_of(values);
}

}  // namespace longshore
