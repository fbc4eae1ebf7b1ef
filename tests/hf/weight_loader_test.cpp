#include "hf/weight_loader.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/number_formats.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

class WeightLoaderTest : public testing::Test {
 protected:
  void SetUp() override { write_text(directory_ / "config.json", "{}"); }
  ModelDirectory open() const { return ModelDirectory::open(directory_.path()); }
  void write(const std::vector<SafetensorsWriter::Tensor>& tensors) {
    write_safetensors(directory_ / "model.safetensors", tensors);
  }
  TemporaryDirectory directory_;
};

// Every 16-bit pattern, NaNs and subnormals included, becomes the fp32 number of the same value.
TEST_F(WeightLoaderTest, WidensEvery16BitPatternExactly) {
  std::vector<uint16_t> patterns(65'536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  SafetensorsWriter writer(
      directory_ / "model.safetensors",
      {{"bf16", TensorDType::kBF16, {256, 256}}, {"fp16", TensorDType::kF16, {65'536}}}, {});
  writer.append(std::as_bytes(std::span(patterns)));
  writer.append(std::as_bytes(std::span(patterns)));
  writer.finish();

  const ModelDirectory model = open();
  const ModelSpec spec = spec_of({parameter("bf16", {256, 256}), parameter("fp16", {65'536})});
  const WeightLoader loader(model, spec, {});
  EXPECT_EQ(loader.stored_dtype("bf16"), DType::kBF16);
  EXPECT_EQ(loader.stored_dtype("fp16"), DType::kF16);
  std::vector<float> bf16(65'536);
  std::vector<float> fp16(65'536);
  loader.read_parameter("bf16", 0, bf16);
  loader.read_parameter("fp16", 0, fp16);
  for (size_t i = 0; i < patterns.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16[i]), static_cast<uint32_t>(i) << 16);
    const int exponent = static_cast<int>(i >> 10 & 31);
    const int mantissa = static_cast<int>(i & 1023);
    const double sign = i >> 15 != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(fp16[i]), mantissa != 0) << i;
      EXPECT_EQ(std::isinf(fp16[i]), mantissa == 0) << i;
    } else {
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(fp16[i], sign * value) << i;
    }
  }
}

// Ranges across the loader's chunks give the values of one whole read.
TEST_F(WeightLoaderTest, ReadsAnyElementRange) {
  write({{"bf16", TensorDType::kBF16, {200'000}}, {"f32", TensorDType::kF32, {1000, 2}}});
  const ModelDirectory model = open();
  const WeightLoader loader(
      model, spec_of({parameter("bf16", {200'000}), parameter("f32", {1000, 2})}), {});
  for (const auto& [name, elements] : {std::pair("bf16", 200'000), std::pair("f32", 2000)}) {
    std::vector<float> whole(static_cast<size_t>(elements));
    loader.read_parameter(name, 0, whole);
    for (const auto& [begin, count] : {std::pair(0, 1), {1, 1999}, {777, 1000}, {2000, 0}}) {
      std::vector<float> part(static_cast<size_t>(count));
      loader.read_parameter(name, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << name << begin;
    }
  }
  std::vector<float> tail(150'000);
  std::vector<float> whole(200'000);
  loader.read_parameter("bf16", 0, whole);
  loader.read_parameter("bf16", 50'000, tail);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.begin() + 50'000));
  std::vector<float> out(2);
  EXPECT_THROW(loader.read_parameter("f32", 1999, out), CheckFailure);
  EXPECT_THROW(loader.read_parameter("f32", -1, out), CheckFailure);
  EXPECT_THROW(loader.read_parameter("absent", 0, out), CheckFailure);
}

// Rows that a run adds are the mean of the stored rows, rounded to their type; they are read in any
// range, and a table of another size is still refused.
TEST_F(WeightLoaderTest, AddsRowsWithTheMeanOfTheOthers) {
  constexpr int64_t kRows = 30'000, kColumns = 3, kAdded = 2;
  write({{"bf16", TensorDType::kBF16, {kRows, kColumns}},
         {"f32", TensorDType::kF32, {kRows, kColumns}}});
  const ModelDirectory model = open();
  std::vector<ParamSpec> parameters;
  for (const char* name : {"bf16", "f32"}) {
    parameters.push_back(parameter(name, {kRows + kAdded, kColumns}));
    parameters.back().added_rows = kAdded;
  }
  const WeightLoader loader(model, spec_of(parameters), {});
  for (const std::string name : {"bf16", "f32"}) {
    std::vector<float> whole(static_cast<size_t>((kRows + kAdded) * kColumns));
    loader.read_parameter(name, 0, whole);
    const auto value = [&whole](int64_t row, int64_t column) {
      return whole[static_cast<size_t>(row * kColumns + column)];
    };
    for (int64_t column = 0; column < kColumns; ++column) {
      double sum = 0.0;
      for (int64_t row = 0; row < kRows; ++row) sum += double{value(row, column)};
      auto mean = static_cast<float>(sum / static_cast<double>(kRows));
      if (name == "bf16") mean = bf16_to_float(float_to_bf16_nearest(mean));
      for (int64_t row = kRows; row < kRows + kAdded; ++row) {
        EXPECT_EQ(value(row, column), mean) << name << " " << column;
      }
    }
    for (const auto& [begin, count] :
         {std::pair(kRows * kColumns - 1, 4), {kRows * kColumns, 1}, {kRows * kColumns + 2, 4}}) {
      std::vector<float> part(static_cast<size_t>(count));
      loader.read_parameter(name, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << name << begin;
    }
    std::vector<float> out(2);
    EXPECT_THROW(loader.read_parameter(name, (kRows + kAdded) * kColumns - 1, out), CheckFailure);
  }
  parameters.front().added_rows = kAdded - 1;
  const std::string error =
      error_of<DataError>([&] { WeightLoader(model, spec_of(parameters), {}); });
  expect_parts(error, {"shape [30000, 3], but config.json makes it [30001, 3]"});
}

// All mismatches between model and files are reported together.
TEST_F(WeightLoaderTest, ReportsAllMismatchesAtOnce) {
  write({{"transposed", TensorDType::kF32, {2, 3}},
         {"quantised", TensorDType::kF8E4M3, {4}},
         {"unknown", TensorDType::kF32, {5}}});
  const ModelDirectory model = open();
  const ModelSpec spec = spec_of(
      {parameter("transposed", {3, 2}), parameter("quantised", {4}), parameter("missing", {7, 7})});
  const std::string error = error_of<DataError>([&] { WeightLoader(model, spec, {}); });
  const std::string file = directory_ / "model.safetensors";
  expect_parts(error,
               {file + ": tensor 'transposed': shape [2, 3], but config.json makes it [3, 2]",
                file + ": tensor 'quantised': dtype F8_E4M3",
                directory_.path() + ": tensor 'missing': missing; config.json makes it [7, 7]",
                file + ": tensor 'unknown': shape [5], but the model"});
}

// Only tensors that a rule names are skipped.
TEST_F(WeightLoaderTest, SkipsOnlyWhatARuleNames) {
  write({{"h.0.attn.weight", TensorDType::kF32, {2}},
         {"h.0.attn.bias", TensorDType::kU8, {4}},
         {"vision.x", TensorDType::kF64, {2}},
         {"h.0.attn.biased", TensorDType::kF32, {2}}});
  const ModelDirectory model = open();
  const ModelSpec spec = spec_of({parameter("h.0.attn.weight", {2})});
  const std::vector<SkipRule> rules = {{"", ".attn.bias", "causal mask buffer"},
                                       {"vision.", "", "vision tower"},
                                       {"", "", "an empty rule skips nothing"}};
  const std::string error = error_of<DataError>([&] { WeightLoader(model, spec, rules); });
  expect_parts(error, {"tensor 'h.0.attn.biased'"});
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;

  const ModelSpec whole =
      spec_of({parameter("h.0.attn.weight", {2}), parameter("h.0.attn.biased", {2})});
  EXPECT_EQ(WeightLoader(model, whole, rules).skipped(),
            (std::vector<std::string>{"h.0.attn.bias", "vision.x"}));
}

}  // namespace
}  // namespace longshore
