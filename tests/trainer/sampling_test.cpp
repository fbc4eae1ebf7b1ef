// Sampling: what temperature, top_k, top_p and min_p leave, compared with transformers
// (make_sampling_golden.py), how draws follow from their key, and that rows and places in a batch
// change none.
#include "trainer/use/sampling.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/json.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

const std::vector<float> kScores = {0.5f, 2.0f, -1.0f, 2.0f, 1.25f, -3.0f};

TokenId drawn(std::span<const float> scores, const Sampling& sampling, const DrawKey& key) {
  return draw_token(scores, sampling, key, /*with_logp=*/false).token;
}

std::vector<double> frequencies(std::span<const float> scores, const Sampling& sampling,
                                uint32_t draws) {
  std::vector<double> counts(scores.size());
  for (uint32_t position = 0; position < draws; ++position) {
    counts[static_cast<size_t>(drawn(scores, sampling, {.position = position}))] += 1.0 / draws;
  }
  return counts;
}

Sampling sampling_of(const Json& settings) {
  return {.temperature = settings.value("temperature", 1.0),
          .top_k = settings.value("top_k", int64_t{0}),
          .top_p = settings.value("top_p", 1.0),
          .min_p = settings.value("min_p", 0.0),
          .seed = 3};
}

// Goal: the tokens that can be drawn, and how often they are, are those of transformers for each
// setting and combination. A frequency of 10,000 draws has a standard deviation of at most 0.005;
// the seed is fixed.
TEST(Sampling, LeavesWhatTransformersLeaves) {
  constexpr uint32_t kDraws = 10'000;
  const Json golden = read_json_file(test_data() + "/trainer/sampling_golden.json", JsonLimits{});
  ASSERT_EQ(golden.at("cases").size(), 45u);
  for (const Json& one : golden.at("cases")) {
    const auto scores = golden.at("rows").at(one.at("row").get<size_t>()).get<std::vector<float>>();
    std::vector<double> wanted(scores.size());
    const auto kept = one.at("kept").get<std::vector<size_t>>();
    for (size_t i = 0; i < kept.size(); ++i) {
      wanted[kept[i]] = one.at("probabilities").at(i).get<double>();
    }
    const std::vector<double> found = frequencies(scores, sampling_of(one.at("settings")), kDraws);
    for (size_t token = 0; token < scores.size(); ++token) {
      EXPECT_NEAR(found[token], wanted[token], 0.02) << one.at("settings") << " " << token;
      const bool can_be_drawn = std::ranges::find(kept, token) != kept.end();
      if (!can_be_drawn) {
        EXPECT_EQ(found[token], 0.0) << one.at("settings") << " " << token;
      }
      if (wanted[token] > 2e-3) {
        EXPECT_GT(found[token], 0.0) << one.at("settings") << " " << token;
      }
    }
  }
}

// Goal: the log-probability is that of the model's distribution, whatever the temperature and cuts.
TEST(Sampling, GivesTheLogProbabilityBeforeAnyCut) {
  const Json golden = read_json_file(test_data() + "/trainer/sampling_golden.json", JsonLimits{});
  for (size_t row = 0; row < golden.at("rows").size(); ++row) {
    const auto scores = golden.at("rows").at(row).get<std::vector<float>>();
    const auto wanted = golden.at("logprobs").at(row).get<std::vector<float>>();
    std::set<TokenId> seen;
    for (uint32_t position = 0; position < 200; ++position) {
      for (const Sampling& sampling :
           {Sampling{}, {.temperature = 3.0}, {.temperature = 0.5, .top_k = 4}}) {
        const Drawn found = draw_token(scores, sampling, {.position = position}, true);
        EXPECT_NEAR(found.logp, wanted[static_cast<size_t>(found.token)], 1e-5);
        seen.insert(found.token);
      }
    }
    EXPECT_GT(seen.size(), 3u);
  }
}

// Goal: without a temperature the most likely token is taken, of equal ones the first.
TEST(Sampling, TakesTheLikeliestWithoutATemperature) {
  for (const int64_t top_k : {0, 1, 4}) {
    EXPECT_EQ(drawn(kScores, {.temperature = 0.0, .top_k = top_k}, {}), 1);
  }
}

// Goal: top_p takes the fewest tokens with the share, of equal ones those of lower ids (the shares
// are 0.36, 0.36, 0.17, 0.08 ...), also over many scores that lie close together.
TEST(Sampling, TakesTheFewestWithTheShare) {
  const std::vector<double> one =
      frequencies(kScores, {.temperature = 1.0, .top_p = 0.3, .seed = 3}, 1000);
  EXPECT_NEAR(one[1], 1.0, 1e-9);
  std::vector<float> close(5000);
  for (size_t i = 0; i < close.size(); ++i) {
    close[i] = 1e-6f * static_cast<float>((i * 2654435761u) % close.size());
  }
  std::vector<float> sorted = close;
  std::ranges::sort(sorted, std::greater());
  float least = sorted.front();
  for (uint32_t position = 0; position < 4'000; ++position) {
    const TokenId token = drawn(close, {.temperature = 1.0, .top_p = 0.1}, {.position = position});
    least = std::min(least, close[static_cast<size_t>(token)]);
  }
  EXPECT_GE(least, sorted[500]) << "a tenth of the tokens has a tenth of the probability";
  EXPECT_LE(least, sorted[450]);
}

// Goal: the draw depends on the seed, and on each part of its key.
TEST(Sampling, FollowsFromSeedPromptSampleAndPosition) {
  const auto draws = [](uint64_t seed, uint64_t prompt, uint32_t sample) {
    std::vector<TokenId> tokens;
    for (uint32_t position = 0; position < 64; ++position) {
      tokens.push_back(drawn(kScores, {.temperature = 1.0, .seed = seed},
                             {.prompt = prompt, .sample = sample, .position = position}));
    }
    return tokens;
  };
  EXPECT_EQ(draws(1, 0, 0), draws(1, 0, 0));
  constexpr uint64_t kHigh = uint64_t{1} << 32;
  const std::set<std::vector<TokenId>> all = {draws(1, 0, 0), draws(2, 0, 0),
                                              draws(1, 1, 0), draws(kHigh | 1, 0, 0),
                                              draws(1, 0, 1), draws(1, kHigh, 0)};
  EXPECT_EQ(all.size(), 6u);
  const std::vector<TokenId> first = draws(1, 0, 0);
  EXPECT_GT(std::set(first.begin(), first.end()).size(), 1u);
}

// Goal: scores that are not finite give no token.
TEST(Sampling, RefusesScoresThatAreNotFinite) {
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> scores = kScores;
    scores[2] = wrong;
    EXPECT_FALSE(draw_token(scores, {.temperature = 1.0}, {}, false).finite);
  }
  EXPECT_TRUE(draw_token(kScores, {.temperature = 1.0}, {}, false).finite);
}

// Random scores, of which some rows have several equal to the third highest.
at::Tensor random_rows(int64_t rows) {
  at::Tensor scores = at::randn({rows, 3000}, at::make_generator<at::CPUGeneratorImpl>(5)) * 2.0;
  const auto [values, ids] = at::topk(scores, 8, 1);
  for (int64_t row = 0; row < rows; row += 2) {
    scores[row].index_fill_(0, ids[row].slice(0, 2, 6), values[row][2]);
  }
  return scores;
}

void expect_same_in_batches(const std::vector<Sampling>& settings) {
  const at::Tensor scores = random_rows(16);
  std::vector<DrawKey> keys;
  for (uint32_t row = 0; row < 16; ++row) keys.push_back({.prompt = row, .position = 9 * row});
  for (const Sampling& sampling : settings) {
    for (const bool with_logps : {false, true}) {
      const std::vector<Drawn> all = draw_tokens(scores, keys, sampling, with_logps);
      ASSERT_EQ(all.size(), 16u);
      for (size_t row = 0; row < 16; ++row) {
        const at::Tensor own = scores[static_cast<int64_t>(row)].contiguous();
        const Drawn alone =
            draw_token({own.const_data_ptr<float>(), 3000}, sampling, keys[row], with_logps);
        EXPECT_EQ(all[row].token, alone.token) << sampling.top_k << " " << row;
        EXPECT_EQ(all[row].logp, alone.logp);
        EXPECT_TRUE(all[row].finite);
      }
    }
  }
}

const std::vector<Sampling> kEach = {{},
                                     {.temperature = 1.0},
                                     {.temperature = 1.0, .top_k = 3},
                                     {.temperature = 1.0, .top_k = 50, .top_p = 0.7},
                                     {.temperature = 2.0, .top_p = 0.9, .min_p = 0.01}};

// Goal: a row's draw has the same token and bits in a batch as alone.
TEST(Sampling, OfARowIsTheSameInABatch) {
  expect_same_in_batches(kEach);
}

// Goal: so it is where a GPU selects the likeliest tokens, also if more than top_k have the score
// of the last one, and rows that are not finite are found there.
TEST(Sampling, SelectsOnAGpuWhatTheHostSelects) {
  const AbsentGpu gpu;
  expect_same_in_batches(kEach);
  at::Tensor scores = random_rows(2);
  scores[1][7] = std::numeric_limits<float>::infinity();
  const std::vector<DrawKey> keys(2);
  for (const Sampling& sampling : kEach) {
    const std::vector<Drawn> found = draw_tokens(scores, keys, sampling, false);
    EXPECT_TRUE(found[0].finite);
    EXPECT_FALSE(found[1].finite) << sampling.top_k;
  }
}

}  // namespace
}  // namespace longshore
