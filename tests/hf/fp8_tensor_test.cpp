#include "hf/fp8_tensor.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/json.h"
#include "hf/exporter.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "tests/fakes/test_files.h"
#include "tests/hf/hf_fixtures.h"
#include "tests/hf/packed_bytes.h"

namespace longshore {
namespace {

using Tensors = std::vector<SafetensorsWriter::Tensor>;

const std::string kGolden = test_data() + "/hf/fp8";
const std::string kLayer = "model.layers.0.";

// The shapes of the golden matrices: blocks that the matrix's end cuts, and a stack of matrices.
ModelSpec golden_spec(bool frozen) {
  return spec_of({parameter(kLayer + "mlp.up_proj.weight", {131, 150}, frozen),
                  parameter(kLayer + "mlp.experts.down_proj", {2, 5, 140}, frozen),
                  parameter(kLayer + "mlp.down_proj.weight", {3, 129}, frozen),
                  parameter(kLayer + "mlp.gate_proj.weight", {129, 2}, frozen),
                  parameter(kLayer + "self_attn.q_proj.weight", {128, 128}, frozen),
                  parameter("lm_head.weight", {7, 4})});
}

std::vector<std::string> packed_names() {
  const ModelDirectory expected = ModelDirectory::open(kGolden + "/expected");
  std::vector<std::string> names;
  for (const ModelDirectory::TensorRef& ref : expected.tensors()) names.push_back(ref.tensor->name);
  return names;
}

// Goal: number times scale in fp32, rounded to bf16, as torch and transformers give it, for scales
// of every type and all numbers.
TEST(Fp8Tensor, ValuesAreThoseOfTransformersBitForBit) {
  const ModelDirectory directory = ModelDirectory::open(kGolden);
  const ModelDirectory expected = ModelDirectory::open(kGolden + "/expected");
  const WeightLoader loader(directory, golden_spec(false), {});
  ASSERT_EQ(packed_names().size(), 5u);
  for (const std::string& name : packed_names()) {
    EXPECT_EQ(directory.find(name).tensor->shape, expected.find(name).tensor->shape);
    EXPECT_EQ(loader.stored_dtype(name), DType::kBF16);
    EXPECT_EQ(bits_of(read_whole(directory, name)), bits_of(read_whole(expected, name))) << name;
  }
  EXPECT_EQ(directory.quantisation(), Quantisation::kFp8);
  EXPECT_EQ(directory.tensors().size(), 6u);
  EXPECT_TRUE(directory.warnings().empty());
}

// Any range of a tensor gives the values of the whole, and so do codes and scales kept packed.
TEST(Fp8Tensor, AnyRangeGivesTheValuesOfTheWhole) {
  const ModelDirectory directory = ModelDirectory::open(kGolden);
  std::mt19937 random(1);
  for (const std::string& name : packed_names()) {
    const ModelDirectory::TensorRef ref = directory.find(name);
    const std::vector<float> whole = read_whole(directory, name);
    for (int i = 0; i < 200; ++i) {
      const size_t begin = random() % whole.size();
      std::vector<float> part(random() % (whole.size() - begin + 1));
      read_elements(ref, static_cast<int64_t>(begin), part);
      const auto at = whole.begin() + static_cast<int64_t>(begin);
      ASSERT_EQ(bits_of(part), bits_of({at, at + static_cast<int64_t>(part.size())})) << name;
    }
    expect_packed_values(ref, whole);
  }
}

class Fp8Files : public testing::Test {
 protected:
  static constexpr TensorDType kF8 = TensorDType::kF8E4M3;
  static std::string config(const std::string& more = "") {
    return R"({"model_type": "llama", "quantization_config": {"quant_method": "fp8",
               "weight_block_size": [128, 128])" +
           more + "}}";
  }
  void SetUp() override { write_text(directory_ / "config.json", config()); }
  std::string problem_of(const Tensors& tensors) {
    std::filesystem::remove(directory_ / "model.safetensors");
    write_safetensors(directory_ / "model.safetensors", tensors);
    return error_of<DataError>([this] { ModelDirectory::open(directory_.path()); });
  }
  TemporaryDirectory directory_;
};

// Tensors that do not belong together are refused with their name, before a value is read.
TEST_F(Fp8Files, TensorsThatDoNotBelongTogetherAreRefused) {
  const SafetensorsWriter::Tensor codes{"w", kF8, {130, 5}};
  const SafetensorsWriter::Tensor scales{"w_scale_inv", TensorDType::kF32, {2, 1}};
  const std::string file = directory_ / "model.safetensors: tensor 'w";
  expect_parts(problem_of({codes}), {file + "'", "scales are missing: 'w_scale_inv'"});
  expect_parts(problem_of({scales}), {file + "_scale_inv'", "no 'w' that it scales"});
  expect_parts(problem_of({{"w", TensorDType::kBF16, {130, 5}}, scales}),
               {file + "_scale_inv'", "is in BF16, not in F8_E4M3"});
  expect_parts(problem_of({codes, {"w_scale_inv", TensorDType::kF32, {1, 2}}}),
               {file + "'", "the shape [1, 2], not [2, 1]"});
  expect_parts(problem_of({codes, {"w_scale_inv", TensorDType::kF16, {2, 1}}}),
               {file + "'", "its scales are in F16"});
  expect_parts(problem_of({{"w", kF8, {5}}, {"w_scale_inv", TensorDType::kF32, {1}}}),
               {file + "'", "[5] is no matrix"});
  expect_parts(problem_of({{"w", TensorDType::kI8, {130, 5}}, scales}), {file + "'", "FP4"});
}

// A code of NaN is named with its place, whether values or packed bytes are read.
TEST_F(Fp8Files, ACodeThatIsNoNumberIsNamed) {
  SafetensorsWriter writer(directory_ / "model.safetensors",
                           {{"w", kF8, {3, 4}}, {"w_scale_inv", TensorDType::kF32, {1, 1}}}, {});
  std::vector<std::byte> codes(12, std::byte{0x38});
  codes[7] = std::byte{0xFF};
  writer.append(codes);
  const float scale = 0.5F;
  writer.append(std::as_bytes(std::span(&scale, 1)));
  writer.finish();
  const ModelDirectory model = ModelDirectory::open(directory_.path());
  std::vector<float> first(7);
  read_elements(model.find("w"), 0, first);
  EXPECT_EQ(first, std::vector<float>(7, 0.5F));
  const std::vector<std::string> parts = {"tensor 'w': row 1, column 3 is not finite"};
  expect_parts(error_of<DataError>([&] { read_elements(model.find("w"), 1, first); }), parts);
  std::vector<std::byte> packed(static_cast<size_t>(Fp8Layout(3, 4).bytes()));
  const PackedTensor* const tensor = model.find("w").packed;
  expect_parts(error_of<DataError>([&] { tensor->read_packed(0, 0, packed, read_part); }), parts);
}

// Other kinds of fp8 are refused by what makes them others.
TEST_F(Fp8Files, OtherKindsAreRefused) {
  write_safetensors(directory_ / "model.safetensors", {{"w.qweight", TensorDType::kI32, {2, 2}}});
  const auto problem = [&](const std::string& text) {
    write_text(directory_ / "config.json", text);
    return error_of<ConfigError>([this] { ModelDirectory::open(directory_.path()); });
  };
  const std::string start = R"({"model_type": "llama", "quantization_config": )";
  expect_parts(problem(config()), {"names fp8, but the weights are packed otherwise"});
  expect_parts(problem(start + R"({"quant_method": "fp8"}})"), {"128 x 128", "not set"});
  expect_parts(problem(start + R"({"quant_method": "fp8", "weight_block_size": [1, 128]}})"),
               {"128 x 128", "[1,128]"});
  expect_parts(problem(config(R"(, "fmt": "e5m2")")), {"e4m3 alone"});
  expect_parts(problem(config(R"(, "scale_fmt": "half")")), {"scale_fmt"});
  expect_parts(problem(config(R"(, "expert_dtype": "fp4")")), {"FP4", "expert_dtype"});
  expect_parts(problem(config(R"(, "zero_point": true)")), {"the key 'zero_point' is not known"});
  expect_parts(problem(start + R"({"quant_method": "awq"}})"),
               {"quantised weights cannot be trained, but for block-scaled fp8"});
}

// An export is bf16 whatever was trained, under the same names and without quantization_config.
TEST(Fp8Export, IsWrittenAsBf16) {
  for (const bool frozen : {false, true}) {
    TemporaryDirectory work;
    const ModelDirectory source = ModelDirectory::open(kGolden);
    const ParameterReader read = [&source](const std::string& name, int64_t begin,
                                           std::span<float> out) {
      read_elements(source.find(name), begin, out);
    };
    export_model(source, golden_spec(frozen), work / "out", read);
    const ModelDirectory written = ModelDirectory::open(work / "out");
    EXPECT_EQ(written.tensors().size(), 6u);
    for (const std::string& name : packed_names()) {
      EXPECT_EQ(written.find_stored(name).tensor->dtype, TensorDType::kBF16);
      EXPECT_EQ(bits_of(read_whole(written, name)), bits_of(read_whole(source, name))) << name;
    }
    Json config = source.config();
    config.erase("quantization_config");
    EXPECT_EQ(written.config(), config);
  }
}

}  // namespace
}  // namespace longshore
