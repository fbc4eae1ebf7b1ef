#include "hf/mxfp4.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/json.h"
#include "base/number_formats.h"
#include "hf/exporter.h"
#include "hf/json_members.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "tests/fakes/test_files.h"
#include "tests/hf/hf_fixtures.h"
#include "tests/hf/packed_bytes.h"

namespace longshore {
namespace {

using Tensors = std::vector<SafetensorsWriter::Tensor>;

const std::string kGolden = test_data() + "/hf/mxfp4";
constexpr const char* kGateUp = "model.layers.0.mlp.experts.gate_up_proj";
constexpr const char* kDown = "model.layers.0.mlp.experts.down_proj";
constexpr const char* kConfig =
    R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})";

ModelSpec golden_spec(bool frozen) {
  return spec_of({parameter(kGateUp, {3, 96, 29}, frozen), parameter(kDown, {2, 64, 33}, frozen),
                  parameter("lm_head.weight", {7, 4})});
}

// Values equal those of transformers bit for bit, for all finite exponents and pairs of values.
TEST(Mxfp4, ValuesAreThoseOfTransformersBitForBit) {
  const ModelDirectory directory = ModelDirectory::open(kGolden);
  const ModelDirectory expected = ModelDirectory::open(kGolden + "/expected");
  const WeightLoader loader(directory, golden_spec(false), {});
  for (const char* name : {kGateUp, kDown}) {
    EXPECT_EQ(directory.find(name).tensor->shape, expected.find(name).tensor->shape);
    EXPECT_EQ(loader.stored_dtype(name), DType::kBF16);
    EXPECT_EQ(bits_of(read_whole(directory, name)), bits_of(read_whole(expected, name)));
  }
  EXPECT_EQ(directory.tensors().size(), 3u);
  EXPECT_TRUE(directory.warnings().empty());
}

// Any range of a tensor gives the values of the whole, within and across columns and experts.
TEST(Mxfp4, AnyRangeGivesTheValuesOfTheWhole) {
  const ModelDirectory directory = ModelDirectory::open(kGolden);
  const WeightLoader loader(directory, golden_spec(false), {});
  std::mt19937 random(1);
  for (const char* name : {kGateUp, kDown}) {
    const std::vector<float> whole = read_whole(directory, name);
    for (int i = 0; i < 500; ++i) {
      const size_t begin = random() % whole.size();
      const size_t longest = i % 3 == 0 ? 40 : whole.size();
      std::vector<float> part(random() % (std::min(longest, whole.size() - begin) + 1));
      loader.read_parameter(name, static_cast<int64_t>(begin), part);
      const auto at = whole.begin() + static_cast<int64_t>(begin);
      ASSERT_EQ(bits_of(part), bits_of({at, at + static_cast<int64_t>(part.size())}))
          << name << " " << begin;
    }
    expect_packed_values(directory.find(name), whole);
  }
}

// Experts larger than one read piece are read whole; the last piece is shorter.
TEST(Mxfp4, ReadsExpertsLargerThanAPiece) {
  TemporaryDirectory directory;
  write_text(directory / "config.json", kConfig);
  constexpr int64_t kRows = 1000, kGroups = 100;
  SafetensorsWriter writer(directory / "model.safetensors",
                           {{"w_blocks", TensorDType::kU8, {1, kRows, kGroups, 16}},
                            {"w_scales", TensorDType::kU8, {1, kRows, kGroups}}},
                           {});
  std::vector<std::byte> blocks(kRows * kGroups * 16), scales(kRows * kGroups);
  std::mt19937 random(2);
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random());
  for (std::byte& byte : scales) byte = static_cast<std::byte>(120 + random() % 16);
  writer.append(blocks);
  writer.append(scales);
  writer.finish();
  const ModelDirectory model = ModelDirectory::open(directory.path());
  const std::vector<float> values = read_whole(model, "w");
  constexpr float kTable[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (int64_t column = 0; column < kGroups * 32; ++column) {
    for (int64_t row = 0; row < kRows; row += 37) {
      const int64_t group = row * kGroups + column / 32;
      const auto pair =
          std::to_integer<unsigned>(blocks[static_cast<size_t>(group * 16 + column % 32 / 2)]);
      const unsigned code = column % 2 == 0 ? pair & 15U : pair >> 4;
      const int exponent = std::to_integer<int>(scales[static_cast<size_t>(group)]) - 127;
      const float size = std::ldexp(kTable[code & 7U], exponent);
      ASSERT_EQ(values[static_cast<size_t>(column * kRows + row)], code > 7 ? -size : size);
    }
  }
}

class Mxfp4Files : public testing::Test {
 protected:
  void SetUp() override { write_text(directory_ / "config.json", kConfig); }
  void write(const Tensors& tensors) {
    std::filesystem::remove(directory_ / "model.safetensors");
    write_safetensors(directory_ / "model.safetensors", tensors);
  }
  std::string problem_of(const Tensors& tensors) {
    write(tensors);
    return error_of<DataError>([this] { ModelDirectory::open(directory_.path()); });
  }
  TemporaryDirectory directory_;
};

// Tensors that do not belong together are refused with their name, before a value is read.
TEST_F(Mxfp4Files, TensorsThatDoNotBelongTogetherAreRefused) {
  constexpr TensorDType kU8 = TensorDType::kU8;
  const SafetensorsWriter::Tensor blocks{"w_blocks", kU8, {2, 3, 1, 16}};
  const SafetensorsWriter::Tensor scales{"w_scales", kU8, {2, 3, 1}};
  const std::string file = directory_ / "model.safetensors: tensor 'w_";
  expect_parts(problem_of({blocks}), {file + "blocks'", "scales are missing: 'w_scales'"});
  expect_parts(problem_of({scales}), {file + "scales'", "no 'w_blocks'"});
  expect_parts(problem_of({blocks, scales, {"w", TensorDType::kBF16, {2}}}),
               {file + "blocks'", "also hold 'w'"});
  expect_parts(problem_of({blocks, {"w_scales", TensorDType::kF8E8M0, {2, 3, 1}}}),
               {"dtype F8_E8M0 of 'w_scales'", "read from U8"});
  expect_parts(problem_of({{"w_blocks", TensorDType::kI8, {2, 3, 1, 16}}, scales}),
               {"dtype I8 of 'w_blocks'"});
  expect_parts(problem_of({blocks, {"w_scales", kU8, {2, 1, 3}}}),
               {"scales have the shape [2, 1, 3]", "[2, 3, 1, 16] without the last"});
  expect_parts(problem_of({{"w_blocks", kU8, {2, 3, 2, 8}}, {"w_scales", kU8, {2, 3, 2}}}),
               {"[2, 3, 2, 8] is not [experts, rows, groups, 16]"});
  expect_parts(problem_of({{"w_blocks", kU8, {6, 1, 16}}, {"w_scales", kU8, {6, 1}}}),
               {"is not [experts, rows, groups, 16]"});
  expect_parts(problem_of({{"w_blocks", kU8, {2, 0, 1, 16}}, {"w_scales", kU8, {2, 0, 1}}}),
               {"is empty"});
  expect_parts(problem_of({{"w_blocks", kU8, {1, 1, 65537, 16}}, {"w_scales", kU8, {1, 1, 65537}}}),
               {"more than 65536 groups"});
  write({blocks, scales});
  const ModelDirectory good = ModelDirectory::open(directory_.path());
  expect_parts(
      error_of<DataError>([&] { WeightLoader(good, spec_of({parameter("w", {2, 3, 32})}), {}); }),
      {"'w': shape [2, 32, 3], but config.json makes it [2, 3, 32]"});
}

// A scale that would make infinities is named with its index, and no values are returned.
TEST_F(Mxfp4Files, AScaleThatIsTooLargeIsNamed) {
  SafetensorsWriter writer(
      directory_ / "model.safetensors",
      {{"w_blocks", TensorDType::kU8, {2, 3, 1, 16}}, {"w_scales", TensorDType::kU8, {2, 3, 1}}},
      {});
  std::vector<std::byte> blocks(2 * 3 * 16, std::byte{0x77}), scales(6, std::byte{127});
  scales[3 + 1] = std::byte{255};
  writer.append(blocks);
  writer.append(scales);
  writer.finish();
  const ModelDirectory model = ModelDirectory::open(directory_.path());
  const ModelDirectory::TensorRef ref = model.find("w");
  std::vector<float> first(32 * 3);
  read_elements(ref, 0, first);
  EXPECT_EQ(first, std::vector<float>(32 * 3, 6.0F));
  expect_parts(error_of<DataError>([&] { read_elements(ref, 32 * 3, first); }),
               {"model.safetensors: tensor 'w_scales'", "expert 1, row 1", "too large"});
  std::vector<std::byte> packed(static_cast<size_t>(Mxfp4Layout(32, 3).bytes()));
  ref.packed->read_packed(0, 0, packed, read_part);
  expect_parts(error_of<DataError>([&] { ref.packed->read_packed(1, 0, packed, read_part); }),
               {"model.safetensors: tensor 'w_scales'", "expert 1, row 1", "too large"});
}

// Quantisations other than gpt_oss in MXFP4 are refused by the key that names them.
TEST_F(Mxfp4Files, OtherQuantisationsAreRefused) {
  write({{"w", TensorDType::kI8, {2, 2}}});
  const auto problem = [&](const std::string& config) {
    write_text(directory_ / "config.json", config);
    return error_of<ConfigError>([this] {
      ModelDirectory::open(directory_.path(), ModelDirectory::Weights::kRequired,
                           std::vector<std::string>{"gpt_oss"});
    });
  };
  const std::string place = directory_ / "config.json: quantization_config";
  expect_parts(problem(kConfig), {place, "the weights are packed otherwise"});
  expect_parts(
      problem(R"({"model_type": "qwen3_moe", "quantization_config": {"quant_method": "mxfp4"}})"),
      {place, "mxfp4 is read for gpt_oss alone"});
  expect_parts(problem(R"({"model_type": "gpt_oss", "quantization_config":
                           {"quant_method": "mxfp4", "block_size": 16}})"),
               {place, "the key 'block_size' is not known"});
  expect_parts(problem(R"({"model_type": "gpt_oss", "quantization_config": "mxfp4"})"),
               {place, "quantised weights cannot be trained"});
  expect_parts(problem(R"({"model_type": "gpt_oss", "text_config": {"quantization_config":
                           {"quant_method": "mxfp4"}}})"),
               {"text_config.quantization_config", "quantised weights cannot be trained"});
}

ParameterReader reader_of(const ModelDirectory& source) {
  return [&source](const std::string& name, int64_t begin, std::span<float> out) {
    read_elements(source.find(name), begin, out);
  };
}

// If one expert was trained, all experts are exported as bf16 in files of the requested size;
// config.json loses its quantisation and keeps every other byte.
TEST(Mxfp4Export, TrainedExpertsAreWrittenAsBf16) {
  TemporaryDirectory work;
  const ModelDirectory source = ModelDirectory::open(kGolden);
  ModelSpec spec = golden_spec(true);
  spec.units[0].parameters[0].frozen = false;
  const ExportResult result =
      export_model(source, spec, work / "out", reader_of(source), {.max_file_bytes = 20'000});
  EXPECT_EQ(result.tensors, 3);
  const ModelDirectory written = ModelDirectory::open(work / "out");
  EXPECT_EQ(written.files().size(), 2u);
  EXPECT_TRUE(written.warnings().empty());
  for (const char* name : {kGateUp, kDown}) {
    EXPECT_EQ(written.find_stored(name).tensor->dtype, TensorDType::kBF16);
    EXPECT_EQ(bits_of(read_whole(written, name)), bits_of(read_whole(source, name))) << name;
  }
  Json config = source.config();
  config.erase("quantization_config");
  EXPECT_EQ(written.config(), config);
}

// Without a trained expert the experts stay packed, byte for byte; a requested type unpacks them.
TEST(Mxfp4Export, ExpertsThatWereFrozenStayAsTheyWerePublished) {
  TemporaryDirectory work;
  const ModelDirectory source = ModelDirectory::open(kGolden);
  export_model(source, golden_spec(true), work / "kept", reader_of(source));
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().filename();
    EXPECT_EQ(read_file(work / "kept/" + name), read_file(kGolden + "/" + name)) << name;
  }
  export_model(source, golden_spec(true), work / "wide", reader_of(source), {.dtype = DType::kF32});
  const ModelDirectory wide = ModelDirectory::open(work / "wide");
  EXPECT_EQ(wide.find_stored(kDown).tensor->dtype, TensorDType::kF32);
  EXPECT_EQ(bits_of(read_whole(wide, kDown)), bits_of(read_whole(source, kDown)));
  EXPECT_EQ(wide.config()["torch_dtype"], "float32");
}

// Removing quantization_config leaves the rest of the text unchanged.
TEST(Mxfp4Export, QuantizationConfigLeavesTheTextWithoutATrace) {
  const auto without = [](const std::string& text) {
    return without_member(text, "quantization_config");
  };
  const std::string gone = R"("quantization_config": {"a": "}\"", "b": [1, {}]})";
  EXPECT_EQ(without("{ " + gone + ",\n \"x\": 1}"), "{ \"x\": 1}");
  EXPECT_EQ(without("{\"x\": \"q\",\n  " + gone + ",\n  \"y\": {}}"),
            "{\"x\": \"q\",\n  \"y\": {}}");
  EXPECT_EQ(without("{\"x\": [1, 2],\n  " + gone + "\n}"), "{\"x\": [1, 2]\n}");
  EXPECT_EQ(without("{" + gone + "}"), "{}");
  const std::string inner = "{\"x\": {" + gone + "}, \"y\": 1}";
  EXPECT_EQ(without(inner), inner);
}

// Goal: setting a member of a JSON text replaces it once and keeps the others as written.
TEST(JsonMembers, AreSetInAText) {
  EXPECT_EQ(with_member("{}", "a", "[1, 2]"), "{\n  \"a\": [1, 2]\n}");
  EXPECT_EQ(with_member("{\n  \"x\": 1e-3,\n  \"a\": 5\n}\n", "a", "[7]"),
            "{\n  \"a\": [7],\n  \"x\": 1e-3\n}\n");
  EXPECT_EQ(with_member("{\"x\": {\"a\": 5}}", "a", "7"), "{\n  \"a\": 7,\"x\": {\"a\": 5}}");
}

}  // namespace
}  // namespace longshore
