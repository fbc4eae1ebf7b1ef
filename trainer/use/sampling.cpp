#include "trainer/use/sampling.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/random.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

// Weights are summed in blocks, so that the draw computes the exponentials of one block twice.
constexpr size_t kBlock = 1024;
// A GPU's selection of more tokens than this costs more than the copy of the row.
constexpr int64_t kMostSelectedOnDevice = 1024;

// Tokens to choose from, in the order of ids. Without ids, the token of scores[i] is i.
struct Candidates {
  std::span<const float> scores;
  std::span<const TokenId> ids = {};

  TokenId token(size_t index) const {
    return ids.empty() ? static_cast<TokenId>(index) : ids[index];
  }
};

// A cut leaves the candidates with a score above `least`, and of those with this score the ones up
// to `last`.
struct Cut {
  float least = -std::numeric_limits<float>::infinity();
  size_t last = std::numeric_limits<size_t>::max();

  bool keeps(float score, size_t index) const {
    return score > least || (score == least && index <= last);
  }
};

bool all_finite(std::span<const float> scores) {
  bool finite = true;
  for (const float score : scores) finite &= std::isfinite(score);
  return finite;
}

// The weight of a score, its probability divided by the likeliest token's.
struct Weights {
  float highest = 0.0f;
  float scale = 1.0f;  // 1 / temperature

  float distance(float score) const { return (highest - score) * scale; }
  float of(float score) const { return std::exp(-distance(score)); }
};

Weights weights_of(std::span<const float> scores, double temperature) {
  const auto scale = static_cast<float>(1.0 / temperature);
  return {*std::ranges::max_element(scores),
          std::isfinite(scale) ? scale : std::numeric_limits<float>::max()};
}

// Returns the k-th highest score, with a heap of k scores.
float kth_highest(std::span<const float> scores, size_t k) {
  std::vector<float> heap(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(k));
  std::ranges::make_heap(heap, std::greater());
  for (const float score : scores.subspan(k)) {
    if (score <= heap.front()) continue;
    std::ranges::pop_heap(heap, std::greater());
    heap.back() = score;
    std::ranges::push_heap(heap, std::greater());
  }
  return heap.front();
}

// A candidate near the end of top_p's share.
struct Weighed {
  float score;
  size_t index;
  double weight;
};

bool likelier(const Weighed& a, const Weighed& b) {
  return a.score != b.score ? a.score > b.score : a.index < b.index;
}

// Returns the last of the fewest likeliest elements that together weigh at least `share`. Halves
// the list, without sorting it.
Cut cut_after(std::vector<Weighed>& list, double share) {
  std::span<Weighed> left(list);
  while (left.size() > 1) {
    const size_t half = left.size() / 2;
    std::ranges::nth_element(left, left.begin() + static_cast<std::ptrdiff_t>(half), likelier);
    double weight = 0.0;
    for (const Weighed& one : left.first(half)) weight += one.weight;
    if (weight >= share) {
      left = left.first(half);
    } else {
      left = left.subspan(half);
      share -= weight;
    }
  }
  return {left.front().score, left.front().index};
}

// Returns the cut of top_p. A first pass sums the weights of candidates by their distance from the
// likeliest one, so that only those of one distance are compared with each other.
Cut cut_of_share(const Candidates& candidates, const Weights& weights, double top_p) {
  constexpr float kBinsPerUnit = 16.0f;
  constexpr size_t kBins = 512;
  const auto bin_of = [&](float score) {
    const float place = weights.distance(score) * kBinsPerUnit;
    return place < static_cast<float>(kBins - 1) ? static_cast<size_t>(place) : kBins - 1;
  };
  std::array<double, kBins> sums{};
  for (const float score : candidates.scores) sums[bin_of(score)] += weights.of(score);
  double total = 0.0;
  for (const double sum : sums) total += sum;
  double share = top_p * total;
  size_t bin = 0;
  while (bin + 1 < kBins && sums[bin] < share) share -= sums[bin++];
  std::vector<Weighed> list;
  for (size_t i = 0; i < candidates.scores.size(); ++i) {
    const float score = candidates.scores[i];
    if (bin_of(score) == bin) list.push_back({score, i, weights.of(score)});
  }
  // Without any, rounding has moved the share beyond the last candidate, and all are left.
  return list.empty() ? Cut{} : cut_after(list, share);
}

// Returns the lowest score whose weight is at least min_p.
float least_of_min_p(const Candidates& candidates, const Weights& weights, double min_p) {
  float least = weights.highest;
  for (const float score : candidates.scores) {
    if (score < least && weights.of(score) >= static_cast<float>(min_p)) least = score;
  }
  return least;
}

// Returns a number in (0, 1).
double random_share(const DrawKey& key, uint64_t seed) {
  const auto bits = philox4x32({static_cast<uint32_t>(key.prompt), key.position, key.sample,
                                static_cast<uint32_t>(key.prompt >> 32)},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t digits = uint64_t{bits[0]} << 21 | bits[1] >> 11;
  return (static_cast<double>(digits) + 0.5) * 0x1p-53;
}

// Returns the candidate at which the sums of weights pass `share` of the total.
size_t at_share(const Candidates& candidates, const Weights& weights, const Cut& cut,
                double share) {
  const size_t count = candidates.scores.size();
  const auto weight = [&](size_t i) {
    const float score = candidates.scores[i];
    return cut.keeps(score, i) ? static_cast<double>(weights.of(score)) : 0.0;
  };
  std::vector<double> sums;
  double total = 0.0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    double sum = 0.0;
    for (size_t i = begin; i < std::min(begin + kBlock, count); ++i) sum += weight(i);
    sums.push_back(sum);
    total += sum;
  }
  double target = share * total;
  size_t block = 0;
  while (block + 1 < sums.size() && target >= sums[block]) target -= sums[block++];
  // If rounding moves the target beyond the last weight, the last candidate with one is drawn.
  size_t found = 0;
  for (size_t i = block * kBlock; i < std::min((block + 1) * kBlock, count); ++i) {
    const double own = weight(i);
    if (own <= 0.0) continue;
    found = i;
    target -= own;
    if (target < 0.0) break;
  }
  return found;
}

// Draws from candidates that top_k has left.
TokenId draw_from(const Candidates& candidates, const Sampling& sampling, const DrawKey& key) {
  const Weights weights = weights_of(candidates.scores, sampling.temperature);
  Cut cut;
  if (sampling.top_p < 1.0) cut = cut_of_share(candidates, weights, sampling.top_p);
  if (sampling.min_p > 0.0) {
    const float least = least_of_min_p(candidates, weights, sampling.min_p);
    if (least > cut.least) cut = {.least = least};
  }
  const double share = random_share(key, sampling.seed);
  return candidates.token(at_share(candidates, weights, cut, share));
}

TokenId choose(std::span<const float> scores, const Sampling& sampling, const DrawKey& key) {
  if (sampling.temperature <= 0.0) {
    return static_cast<TokenId>(std::ranges::max_element(scores) - scores.begin());
  }
  if (sampling.top_k <= 0 || sampling.top_k >= std::ssize(scores)) {
    return draw_from({scores}, sampling, key);
  }
  const float least = kth_highest(scores, static_cast<size_t>(sampling.top_k));
  std::vector<float> kept;
  std::vector<TokenId> ids;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] < least) continue;
    kept.push_back(scores[i]);
    ids.push_back(static_cast<TokenId>(i));
  }
  return draw_from({kept, ids}, sampling, key);
}

// Returns the log-softmax of the scores at one of them.
float log_softmax_at(std::span<const float> scores, TokenId token) {
  const Weights weights = weights_of(scores, 1.0);
  double total = 0.0;
  for (const float score : scores) total += weights.of(score);
  const double distance = static_cast<double>(scores[static_cast<size_t>(token)]) - weights.highest;
  return static_cast<float>(distance - std::log(total));
}

std::span<const float> row_of(const at::Tensor& host, size_t row) {
  const auto width = static_cast<size_t>(host.size(1));
  return {host.const_data_ptr<float>() + row * width, width};
}

// Returns by row whether all scores are finite: their extremes are.
at::Tensor finite_rows(const at::Tensor& scores) {
  const auto [least, most] = at::aminmax(scores, 1);
  return at::isfinite(least).logical_and(at::isfinite(most));
}

std::vector<Drawn> likeliest_on_device(const at::Tensor& scores) {
  // HOST WAIT: the next round's inputs are the drawn tokens.
  const at::Tensor found =
      at::stack({scores.argmax(1), finite_rows(scores).to(at::kLong)}).to(at::kCPU);
  const int64_t* const values = found.const_data_ptr<int64_t>();
  std::vector<Drawn> drawn;
  for (int64_t row = 0; row < scores.size(0); ++row) {
    drawn.push_back(
        {.token = static_cast<TokenId>(values[row]), .finite = values[scores.size(0) + row] != 0});
  }
  return drawn;
}

// The top_k likeliest tokens of each row, selected on the device.
struct Selected {
  at::Tensor scores, ids;  // on the host
  at::Tensor count;        // int64: tokens with at least the k-th score; -1: not all are finite
};

Selected select_on_device(const at::Tensor& scores, int64_t k) {
  const auto [values, ids] = at::topk(scores, k, 1);
  const at::Tensor reached = scores.ge(values.slice(1, k - 1, k)).sum(1);
  const at::Tensor count = at::where(finite_rows(scores), reached, at::full_like(reached, -1));
  // HOST WAIT: the next round's inputs are the drawn tokens.
  return {values.to(at::kCPU), ids.to(at::kCPU), count.to(at::kCPU)};
}

Drawn draw_selected(const Selected& selected, size_t row, const Sampling& sampling,
                    const DrawKey& key) {
  const std::span<const float> scores = row_of(selected.scores, row);
  const int64_t* const ids = selected.ids.const_data_ptr<int64_t>() + row * scores.size();
  std::vector<std::pair<TokenId, float>> pairs;
  for (size_t i = 0; i < scores.size(); ++i) {
    pairs.emplace_back(static_cast<TokenId>(ids[i]), scores[i]);
  }
  std::ranges::sort(pairs);
  std::vector<float> kept;
  std::vector<TokenId> tokens;
  for (const auto& [token, score] : pairs) {
    tokens.push_back(token);
    kept.push_back(score);
  }
  return {.token = draw_from({kept, tokens}, sampling, key)};
}

std::vector<Drawn> draw_top_k_on_device(const at::Tensor& scores, std::span<const DrawKey> keys,
                                        const Sampling& sampling) {
  const Selected selected = select_on_device(scores, sampling.top_k);
  const int64_t* const counts = selected.count.const_data_ptr<int64_t>();
  std::vector<Drawn> drawn(keys.size());
  for (size_t row = 0; row < keys.size(); ++row) {
    if (counts[row] < 0) {
      drawn[row].finite = false;
    } else if (counts[row] == sampling.top_k) {
      drawn[row] = draw_selected(selected, row, sampling, keys[row]);
    } else {
      // More tokens have the k-th score, and top_k leaves all of them.
      const at::Tensor whole =
          scores.slice(0, static_cast<int64_t>(row), static_cast<int64_t>(row) + 1).to(at::kCPU);
      drawn[row] = draw_token(row_of(whole, 0), sampling, keys[row], /*with_logp=*/false);
    }
  }
  return drawn;
}

}  // namespace

Drawn draw_token(std::span<const float> scores, const Sampling& sampling, const DrawKey& key,
                 bool with_logp) {
  if (!all_finite(scores)) return {.finite = false};
  Drawn drawn{.token = choose(scores, sampling, key)};
  if (with_logp) drawn.logp = log_softmax_at(scores, drawn.token);
  return drawn;
}

std::vector<Drawn> draw_tokens(const at::Tensor& scores, std::span<const DrawKey> keys,
                               const Sampling& sampling, bool with_logps) {
  LONGSHORE_CHECK(scores.dim() == 2 && scores.size(0) == std::ssize(keys) &&
                  scores.scalar_type() == at::kFloat);
  if (takes_gpu_form(scores) && !with_logps) {
    if (sampling.temperature <= 0.0) return likeliest_on_device(scores);
    const int64_t k = sampling.top_k;
    if (k > 0 && k < std::min(scores.size(1), kMostSelectedOnDevice + 1)) {
      return draw_top_k_on_device(scores, keys, sampling);
    }
  }
  // HOST WAIT: the next round's inputs are the drawn tokens.
  const at::Tensor host = scores.to(at::kCPU).contiguous();
  std::vector<Drawn> drawn(keys.size());
  at::parallel_for(0, std::ssize(keys), 1, [&](int64_t begin, int64_t end) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      drawn[row] = draw_token(row_of(host, row), sampling, keys[row], with_logps);
    }
  });
  return drawn;
}

}  // namespace longshore
