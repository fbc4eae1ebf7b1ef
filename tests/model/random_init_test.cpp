// Random values depend on name, seed and element; the presets use them.
#include "model/families/random_init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

const InitSpec kNormal{.kind = InitSpec::Kind::kNormal, .standard_deviation = 0.02};

std::vector<float> filled(const std::string& name, uint64_t seed, int64_t begin, size_t count) {
  std::vector<float> values(count);
  fill_random(name, kNormal, seed, begin, values);
  return values;
}

// Any part of a tensor has the bits of the whole.
TEST(RandomInit, AnyPartOfATensorHasTheSameBitsAsTheWhole) {
  const std::vector<float> whole = filled("a.weight", 42, 0, 1000);
  for (const int64_t begin : {1, 2, 3, 4, 255, 256, 997}) {
    const auto count = static_cast<size_t>(std::min<int64_t>(100, 1000 - begin));
    const std::vector<float> part = filled("a.weight", 42, begin, count);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin;
  }
}

// Other names and seeds give other values.
TEST(RandomInit, NamesAndSeedsGiveOtherValues) {
  const std::vector<float> values = filled("a.weight", 42, 0, 100);
  EXPECT_NE(values, filled("b.weight", 42, 0, 100));
  EXPECT_NE(values, filled("a.weight", 43, 0, 100));
  EXPECT_NE(values, filled("a.weight", 0, 0, 100));
}

// Values are normal with the given deviation, and neighbours are independent.
TEST(RandomInit, ValuesAreNormalWithTheGivenDeviation) {
  const std::vector<float> values = filled("a.weight", 1, 0, 200000);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i] / 0.02;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    if (i > 0) neighbours += x * values[i - 1] / 0.02;
  }
  const auto count = static_cast<double>(values.size());
  // The limits are five standard errors.
  EXPECT_NEAR(sum / count, 0.0, 5.0 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1.0, 5.0 * std::sqrt(2.0 / count));
  EXPECT_NEAR(fourth / count, 3.0, 5.0 * std::sqrt(96.0 / count));
  EXPECT_NEAR(neighbours / count, 0.0, 5.0 / std::sqrt(count));
}

// Zeros and ones are exact.
TEST(RandomInit, ZerosAndOnesAreExact) {
  std::vector<float> values(5, 7.0f);
  fill_random("a.bias", {.kind = InitSpec::Kind::kZeros}, 42, 3, values);
  EXPECT_EQ(values, std::vector<float>(5, 0.0f));
  fill_random("a.weight", {.kind = InitSpec::Kind::kOnes}, 42, 3, values);
  EXPECT_EQ(values, std::vector<float>(5, 1.0f));
}

// Logarithms of uniform values lie between those of the bounds, around that of their middle.
TEST(RandomInit, LogarithmsOfUniformValuesKeepTheirBounds) {
  std::vector<float> values(4000);
  fill_random("a", {.kind = InitSpec::Kind::kLogUniform, .bound = 16.0, .least = 0.01}, 42, 0,
              values);
  double sum = 0.0;
  for (const float value : values) {
    ASSERT_GE(value, std::log(0.01F) - 1e-4F);
    ASSERT_LE(value, std::log(16.0F) + 1e-4F);
    sum += std::exp(static_cast<double>(value));
  }
  EXPECT_NEAR(sum / 4000.0, 8.0, 0.4);
}

// Every preset is a model that this program reads.
TEST(InitPresets, EveryPresetIsAModelThisProgramReads) {
  ASSERT_GE(init_presets().size(), 6u);
  for (const InitPreset& preset : init_presets()) {
    const std::string text = init_preset_config(preset.name, {.vocabulary = 512, .eos_token = 3});
    const ArchSpec arch = read_arch_spec(Json::parse(text), std::string(preset.name));
    EXPECT_EQ(arch.vocabulary, 512);
    EXPECT_EQ(arch.eos_tokens, std::vector<int64_t>{3});
    EXPECT_FALSE(arch.bos_token.has_value());
    EXPECT_GT(make_model_spec(arch, {}).parameter_elements(), 10000);
  }
}

// A family's presets stand in the file that has its name.
TEST(InitPresets, EachStandsInTheFileOfItsFamily) {
  for (const NamedText& family : family_presets()) {
    const Json presets = Json::parse(family.text);
    EXPECT_FALSE(presets.empty()) << family.name;
    for (const auto& [name, row] : presets.items()) {
      EXPECT_EQ(row.at("config").at("model_type"), family.name) << name;
    }
  }
}

// The small-llama preset has five to eight million parameters.
TEST(InitPresets, SmallLlamaHasFiveToEightMillionParameters) {
  const std::string text = init_preset_config("small-llama", {.vocabulary = 4096});
  const int64_t elements =
      make_model_spec(read_arch_spec(Json::parse(text), "preset"), {}).parameter_elements();
  EXPECT_GE(elements, 5'000'000);
  EXPECT_LE(elements, 8'000'000);
}

// Goal: the preset with the sizes of Nemotron 3 Nano has its number of parameters.
TEST(InitPresets, NemotronNanoHasThePublishedSize) {
  const std::string text = init_preset_config("nemotron-3-nano-30b-a3b", {.vocabulary = 131072});
  const ArchSpec arch = read_arch_spec(Json::parse(text), "preset");
  EXPECT_EQ(make_model_spec(arch, {}).parameter_elements(), 31'577'940'288);
}

// Goal: the presets with the sizes of Gemma 4 E2B and E4B have as many parameters as transformers
// 5.23 makes from the published text_config (4,628,569,344 and 7,463,013,376), and a stored factor
// for each layer.
TEST(InitPresets, Gemma4E2bAndE4bHaveThePublishedSizes) {
  const auto elements = [](const char* preset) {
    const std::string text = init_preset_config(preset, {.vocabulary = 262144});
    return make_model_spec(read_arch_spec(Json::parse(text), preset), {}).parameter_elements();
  };
  EXPECT_EQ(elements("gemma-4-e2b"), 4'628'569'344 + 35);
  EXPECT_EQ(elements("gemma-4-e4b"), 7'463'013'376 + 42);
}

// An unknown preset is refused with the nearest name.
TEST(InitPresets, AnUnknownNameIsRefusedWithTheNearestOne) {
  try {
    init_preset_config("tiny-lama", {.vocabulary = 10});
    FAIL() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'tiny-llama'?"), std::string::npos);
  }
}

}  // namespace
}  // namespace longshore
