// pick_token: the effect of temperature, top-k, top-p and seed on the distribution of samples.
// TextStream: the pieces of a growing text.
#include "trainer/use/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "text/tokenizer_trainer.h"

namespace longshore {
namespace {

const std::vector<float> kScores = {0.5f, 2.0f, -1.0f, 2.0f, 1.25f, -3.0f};

std::vector<double> frequencies(const Sampling& sampling) {
  constexpr uint32_t kDraws = 40'000;
  std::vector<double> counts(kScores.size());
  for (uint32_t position = 0; position < kDraws; ++position) {
    counts[static_cast<size_t>(pick_token(kScores, sampling, 0, position))] += 1.0 / kDraws;
  }
  return counts;
}

// Without a temperature the most likely token is taken.
TEST(PickToken, TakesTheLikeliestWithoutATemperature) {
  for (const int64_t top_k : {0, 1, 4}) {
    EXPECT_EQ(pick_token(kScores, {.temperature = 0.0, .top_k = top_k}, 0, 0), 1);
  }
}

// Samples follow the softmax at the temperature; of 40,000 samples a frequency has a standard
// deviation of at most 0.0025, and the seed is fixed.
TEST(PickToken, DrawsFromTheSoftmaxAtTheTemperature) {
  for (const double temperature : {0.5, 1.0, 3.0}) {
    std::vector<double> wanted;
    double sum = 0.0;
    for (const float score : kScores) {
      wanted.push_back(std::exp(score / temperature));
      sum += wanted.back();
    }
    const std::vector<double> found = frequencies({.temperature = temperature, .seed = 3});
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(found[i], wanted[i] / sum, 0.01) << temperature << " " << i;
    }
  }
}

// With top_k only the most likely tokens are sampled.
TEST(PickToken, DrawsFromTheLikeliestFewAlone) {
  const std::vector<double> found = frequencies({.temperature = 1.0, .top_k = 3, .seed = 3});
  const double sum = 2.0 * std::exp(2.0) + std::exp(1.25);
  EXPECT_NEAR(found[1], std::exp(2.0) / sum, 0.01);
  EXPECT_NEAR(found[3], std::exp(2.0) / sum, 0.01);
  EXPECT_NEAR(found[4], std::exp(1.25) / sum, 0.01);
  EXPECT_EQ(found[0] + found[2] + found[5], 0.0);
  EXPECT_NEAR(frequencies({.temperature = 1.0, .top_k = 1, .seed = 3})[1], 1.0, 1e-9);
}

// With top_p the fewest tokens that reach the share are sampled (0.36, 0.36, 0.17, 0.08 ...).
TEST(PickToken, DrawsFromTheFewestThatHaveTheShare) {
  const std::vector<double> two = frequencies({.temperature = 1.0, .top_p = 0.7, .seed = 3});
  EXPECT_NEAR(two[1], 0.5, 0.01);
  EXPECT_NEAR(two[3], 0.5, 0.01);
  EXPECT_EQ(two[0] + two[2] + two[4] + two[5], 0.0);
  const std::vector<double> three = frequencies({.temperature = 1.0, .top_p = 0.75, .seed = 3});
  EXPECT_GT(three[4], 0.1);
  EXPECT_EQ(three[0] + three[2] + three[5], 0.0);
}

// The sample depends on seed, prompt and position.
TEST(PickToken, DependsOnSeedPromptAndPosition) {
  const auto draws = [](uint64_t seed, uint32_t prompt) {
    std::vector<TokenId> tokens;
    for (uint32_t position = 0; position < 64; ++position) {
      tokens.push_back(pick_token(kScores, {.temperature = 1.0, .seed = seed}, prompt, position));
    }
    return tokens;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  const std::set<std::vector<TokenId>> all = {draws(1, 0), draws(2, 0), draws(1, 1),
                                              draws(uint64_t{1} << 32 | 1, 0)};
  EXPECT_EQ(all.size(), 4u);
  const std::vector<TokenId> first = draws(1, 0);
  EXPECT_NE(std::set(first.begin(), first.end()).size(), 1u);
}

// Goal: pieces never end within a character, and together they are the whole text, also where it
// ends within a character.
TEST(TextStream, GivesWholeCharactersOnce) {
  const TrainedTokenizer made = byte_tokenizer({});
  const Tokenizer tokenizer = Tokenizer::from_files(
      {.tokenizer = made.tokenizer_json, .tokenizer_config = made.tokenizer_config_json}, "made");
  const std::vector<TokenId> ids = tokenizer.encode("a\xC3\xA9\xE2\x82\xAC.", SpecialTokens::kNone);
  ASSERT_EQ(ids.size(), 7u);
  TextStream stream(&tokenizer);
  std::vector<std::string> pieces;
  for (size_t count = 1; count <= ids.size(); ++count) {
    pieces.push_back(stream.take(std::span(ids).first(count)));
  }
  const std::vector<std::string> wanted = {"a", "", "\xC3\xA9", "", "", "\xE2\x82\xAC", "."};
  EXPECT_EQ(pieces, wanted);
  EXPECT_EQ(stream.rest(tokenizer.decode(ids)), "");
  TextStream cut(&tokenizer);
  EXPECT_EQ(cut.take(std::span(ids).first(2)), "a");
  EXPECT_EQ(cut.rest(tokenizer.decode(std::span(ids).first(2))), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace longshore
