#include "hf/nf4_tensor.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>
#include <tuple>

#include "base/hash.h"
#include "base/json.h"
#include "base/number_formats.h"
#include "hf/exporter.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "tests/fakes/test_files.h"
#include "tests/hf/hf_fixtures.h"
#include "tests/hf/packed_bytes.h"

namespace longshore {
namespace {

const std::string kGolden = test_data() + "/hf/nf4/";
const std::string kLayer = "model.layers.0.";

// FNV-1a over the values' bytes, as make_nf4.py writes it.
std::string digest(std::span<const float> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : std::as_bytes(values)) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return "0x" + hash_text(hash);
}

// Goal: a value is what bitsandbytes' dequantize_4bit gives in bf16, of files that transformers
// wrote, with and without double quantisation.
TEST(Nf4Tensor, ValuesAreThoseOfBitsandbytesBitForBit) {
  for (const std::string kind : {"double", "single"}) {
    const ModelDirectory directory = ModelDirectory::open(kGolden + kind);
    const Json expected = read_json_file(kGolden + kind + "/expected.json", {});
    ASSERT_EQ(expected.size(), 7u);
    for (const auto& [name, values] : expected.items()) {
      const ModelDirectory::TensorRef ref = directory.find(name);
      ASSERT_TRUE(ref && ref.packed != nullptr) << name;
      EXPECT_EQ(digest(read_whole(directory, name)), values.get<std::string>()) << kind << name;
      EXPECT_EQ(ref.packed->format(),
                kind == "double" ? PackedFormat::kNf4 : PackedFormat::kNf4F32);
      EXPECT_EQ(ref.tensor->dtype, TensorDType::kBF16);
    }
    EXPECT_EQ(format_of(directory.quantisation()),
              kind == "double" ? PackedFormat::kNf4 : PackedFormat::kNf4F32);
    // Embedding, head and three norms are not packed.
    EXPECT_EQ(directory.tensors().size(), 7u + 5u);
    EXPECT_TRUE(directory.warnings().empty());
  }
}

// Goal: any range of a matrix gives the values of the whole, and so do the bytes kept packed.
TEST(Nf4Tensor, AnyRangeGivesTheValuesOfTheWhole) {
  std::mt19937 random(1);
  for (const std::string kind : {"double", "single"}) {
    const ModelDirectory directory = ModelDirectory::open(kGolden + kind);
    for (const std::string name : {"mlp.up_proj.weight", "self_attn.k_proj.weight"}) {
      const ModelDirectory::TensorRef ref = directory.find(kLayer + name);
      const std::vector<float> whole = read_whole(directory, kLayer + name);
      for (int i = 0; i < 200; ++i) {
        const size_t begin = random() % whole.size();
        std::vector<float> part(random() % (whole.size() - begin + 1));
        read_elements(ref, static_cast<int64_t>(begin), part);
        const auto at = whole.begin() + static_cast<int64_t>(begin);
        ASSERT_EQ(bits_of(part), bits_of({at, at + std::ssize(part)})) << name;
      }
      expect_packed_values(ref, whole);
    }
  }
}

// Nf4Files: the files of a matrix of 3 x 5 values, one block, which tests change before they write
// them.
class Nf4Files : public testing::Test {
 protected:
  struct Stored {
    TensorDType dtype = TensorDType::kU8;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  using Tensors = std::map<std::string, Stored>;

  template <typename T>
  static Stored stored(TensorDType dtype, const std::vector<T>& values) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    return {dtype, {std::ssize(values)}, {bytes.begin(), bytes.end()}};
  }
  static Stored state(const Json& json) {
    const std::string text = json.dump();
    return stored(TensorDType::kU8, std::vector<char>(text.begin(), text.end()));
  }
  static Json state_json(bool nested) {
    Json json = {
        {"quant_type", "nf4"}, {"blocksize", 64}, {"dtype", "bfloat16"}, {"shape", {3, 5}}};
    if (nested) {
      json["nested_blocksize"] = 256;
      json["nested_dtype"] = "float32";
      json["nested_offset"] = 0.5;
    }
    return json;
  }
  static std::vector<float> levels_of_scales() {
    return {nf4_scale_levels().begin(), nf4_scale_levels().end()};
  }
  static Tensors matrix(bool nested) {
    Tensors tensors;
    tensors["w"] =
        stored(TensorDType::kU8, std::vector<uint8_t>{0x0F, 0xF0, 0x7F, 0xFF, 7, 0xAB, 0xCD, 0xE7});
    tensors["w"].shape = {8, 1};
    tensors["w.quant_map"] =
        stored(TensorDType::kF32, std::vector<float>(kNf4Levels.begin(), kNf4Levels.end()));
    tensors["w.quant_state.bitsandbytes__nf4"] = state(state_json(nested));
    if (!nested) {
      tensors["w.absmax"] = stored(TensorDType::kF32, std::vector<float>{2.0F});
      return tensors;
    }
    tensors["w.absmax"] = stored(TensorDType::kU8, std::vector<uint8_t>{255});
    tensors["w.nested_absmax"] = stored(TensorDType::kF32, std::vector<float>{1.5F});
    tensors["w.nested_quant_map"] = stored(TensorDType::kF32, levels_of_scales());
    return tensors;
  }

  void SetUp() override { declare(R"("load_in_4bit": true)"); }
  void declare(const std::string& more) {
    write_text(
        directory_ / "config.json",
        R"({"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes", )" +
            more + "}}");
  }
  ModelDirectory open(const Tensors& tensors) {
    std::filesystem::remove(directory_ / "model.safetensors");
    std::vector<SafetensorsWriter::Tensor> headers;
    for (const auto& [name, tensor] : tensors) {
      headers.push_back({name, tensor.dtype, tensor.shape});
    }
    SafetensorsWriter writer(directory_ / "model.safetensors", headers, {{"format", "pt"}});
    for (const auto& [name, tensor] : tensors) writer.append(tensor.bytes);
    writer.finish();
    return ModelDirectory::open(directory_.path());
  }
  std::string problem_of(const Tensors& tensors) {
    return error_of<DataError>([&] { open(tensors); });
  }
  std::string state_problem(const std::string& key, const Json& value) {
    Tensors tensors = matrix(true);
    Json json = state_json(true);
    json[key] = value;
    tensors["w.quant_state.bitsandbytes__nf4"] = state(json);
    return problem_of(tensors);
  }

  TemporaryDirectory directory_;
};

// Goal: scale times level, the first value in the upper half of a byte, with the scale 1 x 1.5 +
// 0.5 or 2; the code in the last byte's lower half is none.
TEST_F(Nf4Files, AreReadInTheOrderOfBitsandbytes) {
  for (const bool nested : {true, false}) {
    const ModelDirectory model = open(matrix(nested));
    const std::vector<float> values = read_whole(model, "w");
    const std::vector<size_t> codes = {0, 15, 15, 0, 7, 15, 15, 15, 0, 7, 10, 11, 12, 13, 14};
    ASSERT_EQ(values.size(), codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(values[i], bf16_to_float(float_to_bf16_nearest(2.0F * kNf4Levels[codes[i]]))) << i;
    }
    EXPECT_EQ(model.find("w").tensor->shape, (std::vector<int64_t>{3, 5}));
    EXPECT_EQ(model.find("w").packed->parts().size(), nested ? 6u : 4u);
    expect_packed_values(model.find("w"), values);
  }
}

// Goal: quantised scales with other levels or groups become fp32 scales, with the same values.
TEST_F(Nf4Files, WithOtherLevelsOfScalesKeepTheirValues) {
  Tensors tensors = matrix(true);
  std::vector<float> levels = levels_of_scales();
  levels[255] = 0.9F;
  tensors["w.nested_quant_map"] = stored(TensorDType::kF32, levels);
  const ModelDirectory other_levels = open(tensors);
  EXPECT_EQ(other_levels.find("w").packed->format(), PackedFormat::kNf4F32);
  const std::vector<float> values = read_whole(other_levels, "w");
  EXPECT_EQ(values[1], bf16_to_float(float_to_bf16_nearest(0.9F * 1.5F + 0.5F)));
  expect_packed_values(other_levels.find("w"), values);

  tensors = matrix(true);
  Json json = state_json(true);
  json["nested_blocksize"] = 128;
  tensors["w.quant_state.bitsandbytes__nf4"] = state(json);
  const ModelDirectory other_groups = open(tensors);
  EXPECT_EQ(other_groups.find("w").packed->format(), PackedFormat::kNf4F32);
  expect_packed_values(other_groups.find("w"), read_whole(other_groups, "w"));
}

// Goal: tensors that do not belong together are refused with their name, before a value is read.
TEST_F(Nf4Files, ThatDoNotBelongTogetherAreRefused) {
  const std::string file = directory_ / "model.safetensors: tensor 'w";
  const auto without = [&](const std::string& ending) {
    Tensors tensors = matrix(true);
    tensors.erase("w" + ending);
    return problem_of(tensors);
  };
  expect_parts(without(""), {file + ".absmax'", "no 'w' that it belongs to"});
  expect_parts(without(".absmax"), {file + "'", "scales are missing: 'w.absmax'"});
  expect_parts(without(".quant_map"), {file + "'", "'w.quant_map'"});
  expect_parts(without(".nested_absmax"), {file + "'", "'w.nested_absmax'"});
  expect_parts(without(".nested_quant_map"), {file + "'", "'w.nested_quant_map'"});
  expect_parts(without(".quant_state.bitsandbytes__nf4"), {file + "'", "__nf4' is missing"});

  const auto with = [&](const std::string& name, const Stored& tensor) {
    Tensors tensors = matrix(true);
    tensors[name] = tensor;
    return problem_of(tensors);
  };
  expect_parts(with("w.absmax", stored(TensorDType::kU8, std::vector<uint8_t>{1, 2})),
               {file + "'", "'w.absmax' is U8 [2], not U8 [1]"});
  expect_parts(with("w.absmax", stored(TensorDType::kF32, std::vector<float>{1})),
               {file + "'", "'w.absmax' is F32 [1], not U8 [1]"});
  expect_parts(with("w.nested_absmax", stored(TensorDType::kF32, std::vector<float>{1, 2})),
               {file + "'", "'w.nested_absmax' is F32 [2], not F32 [1]"});
  expect_parts(with("w.quant_map", stored(TensorDType::kF32, std::vector<float>(16, 1.0F))),
               {file + "'", "not the levels of NF4"});
  expect_parts(with("w.nested_quant_map", stored(TensorDType::kF32, std::vector<float>(256, 2.0F))),
               {file + "'", "not from -1 to 1"});
  expect_parts(with("w", stored(TensorDType::kU8, std::vector<uint8_t>(9))),
               {file + "'", "its codes are U8 [9], not the U8 [8, 1] of a matrix [3, 5]"});
  expect_parts(with("w", stored(TensorDType::kBF16, std::vector<uint16_t>(4))),
               {file + "'", "its codes are BF16 [4]", "bnb_4bit_quant_storage"});
  expect_parts(with("v.SCB", stored(TensorDType::kF32, std::vector<float>{1})),
               {"tensor 'v.SCB'", "load_in_8bit"});
  Tensors fp4 = matrix(true);
  fp4["w.quant_state.bitsandbytes__fp4"] = fp4.at("w.quant_state.bitsandbytes__nf4");
  expect_parts(problem_of(fp4), {file + "'", "in FP4", "adapter.base = \"nf4\""});
  Tensors mixed = matrix(true);
  for (const auto& [name, tensor] : matrix(false)) mixed["x" + name.substr(1)] = tensor;
  expect_parts(problem_of(mixed), {"tensor 'x' is packed as nf4-fp32-scales", "tensor 'w' as nf4"});
}

// Goal: a quantisation state that is damaged, or says what is not read, is refused with its key.
TEST_F(Nf4Files, WithABadStateAreRefused) {
  const std::string start = "'w.quant_state.bitsandbytes__nf4': ";
  const std::vector<std::tuple<std::string, Json, std::string>> cases = {
      {"quant_type", "fp4", "quant_type is 'fp4'"},
      {"blocksize", 128, "blocks of 128 values"},
      {"blocksize", -64, "blocksize is negative"},
      {"blocksize", 64.0, "blocksize is not an integer"},
      {"shape", Json::array({15}), "shape is not that of a matrix"},
      {"shape", Json::array({1, 3, 5}), "shape is not that of a matrix"},
      {"shape", Json::array({3, 0}), "shape has sizes that are no integers"},
      {"shape", Json::array({3, -5}), "shape has sizes that are no integers"},
      {"shape", Json::array({int64_t{1} << 40, 5}), "shape has sizes that are no integers"},
      {"nested_blocksize", 0, "nested_blocksize is not from 1"},
      {"nested_offset", nullptr, "nested_offset is not a number"},
      {"nested_offset", 1e39, "nested_offset is not a number"}};
  for (const auto& [key, value, problem] : cases) {
    expect_parts(state_problem(key, value), {"tensor 'w'", start + problem});
  }
  Tensors tensors = matrix(true);
  tensors["w.quant_state.bitsandbytes__nf4"] =
      stored(TensorDType::kU8, std::vector<char>{'{', '"'});
  expect_parts(problem_of(tensors), {"tensor 'w'", "quant_state"});
  tensors["w.quant_state.bitsandbytes__nf4"] =
      stored(TensorDType::kU8, std::vector<char>(5000, ' '));
  expect_parts(problem_of(tensors), {"tensor 'w'", "at most 4096 bytes"});
}

// Goal: a scale that is not finite is named, whether values or packed bytes are read.
TEST_F(Nf4Files, WithAScaleThatIsNotFiniteAreNamed) {
  for (const bool nested : {true, false}) {
    Tensors tensors = matrix(nested);
    tensors[nested ? "w.nested_absmax" : "w.absmax"] =
        stored(TensorDType::kF32, std::vector<float>{3.3e38F});
    const ModelDirectory model = open(tensors);
    const std::vector<std::string> parts = {"tensor 'w'", "values from 0", "fetch it again"};
    expect_parts(error_of<DataError>([&] { read_whole(model, "w"); }), parts);
    const PackedTensor* const tensor = model.find("w").packed;
    const std::vector<int64_t> shape = {3, 5};
    std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(tensor->format(), shape)));
    expect_parts(error_of<DataError>([&] { tensor->read_packed(0, 0, packed, read_part); }), parts);
  }
}

// Goal: what bitsandbytes packs otherwise is refused by the key of config.json, with what to do.
TEST_F(Nf4Files, OfOtherFormatsAreRefused) {
  const auto problem = [&](const std::string& declared) {
    declare(declared);
    return error_of<ConfigError>([&] { open(matrix(true)); });
  };
  const std::string advice = "adapter.base = \"nf4\" or \"fp8\" packs an unquantised model";
  expect_parts(problem(R"("load_in_8bit": true)"), {"load_in_8bit", advice});
  expect_parts(problem(R"("load_in_8bit": false)"), {"load_in_4bit", advice});
  expect_parts(problem(R"("load_in_4bit": true, "bnb_4bit_quant_type": "fp4")"),
               {"bnb_4bit_quant_type = \"fp4\"", advice});
  expect_parts(problem(R"("load_in_4bit": true, "bnb_4bit_quant_storage": "bfloat16")"),
               {"bnb_4bit_quant_storage = \"bfloat16\"", advice});
  expect_parts(problem(R"("load_in_4bit": true, "bits": 4)"), {"the key 'bits' is not known"});
}

// Goal: an export is bf16 whatever was trained, under the same names and without
// quantization_config.
TEST(Nf4Export, IsWrittenAsBf16) {
  const ModelDirectory source = ModelDirectory::open(kGolden + "double");
  for (const bool frozen : {false, true}) {
    TemporaryDirectory work;
    std::vector<ParamSpec> parameters;
    for (const ModelDirectory::TensorRef& ref : source.tensors()) {
      parameters.push_back(parameter(ref.tensor->name, ref.tensor->shape, frozen));
    }
    // Something is trained.
    parameters.front().frozen = false;
    const ParameterReader read = [&source](const std::string& name, int64_t begin,
                                           std::span<float> out) {
      read_elements(source.find(name), begin, out);
    };
    export_model(source, spec_of(parameters), work / "out", read);
    const ModelDirectory written = ModelDirectory::open(work / "out");
    ASSERT_EQ(written.tensors().size(), source.tensors().size());
    for (const ModelDirectory::TensorRef& ref : source.tensors()) {
      const std::string& name = ref.tensor->name;
      EXPECT_EQ(written.find_stored(name).tensor->dtype, TensorDType::kBF16);
      EXPECT_EQ(bits_of(read_whole(written, name)), bits_of(read_whole(source, name))) << name;
    }
    Json config = source.config();
    config.erase("quantization_config");
    EXPECT_EQ(written.config(), config);
  }
}

// Goal: a table to which a run added rows is written whole beside matrices that were in NF4, and
// config.json loses its quantisation and gets the new size.
TEST(Nf4Export, HasTheRowsThatTheRunAdded) {
  constexpr int64_t kAdded = 2;
  const std::string name = "model.embed_tokens.weight";
  const ModelDirectory source = ModelDirectory::open(kGolden + "double");
  std::vector<ParamSpec> parameters;
  for (const ModelDirectory::TensorRef& ref : source.tensors()) {
    const bool table = ref.tensor->name == name;
    parameters.push_back(parameter(ref.tensor->name, ref.tensor->shape, !table));
    if (!table) continue;
    parameters.back().shape.front() += kAdded;
    parameters.back().added_rows = kAdded;
  }
  const ModelSpec spec = spec_of(parameters);
  const WeightLoader loader(source, spec, {});
  const int64_t rows = source.find(name).tensor->shape.front() + kAdded;
  TemporaryDirectory work;
  export_model(source, spec, work / "out",
               [&loader](const std::string& of, int64_t begin, std::span<float> out) {
                 loader.read_parameter(of, begin, out);
               },
               {.vocabulary = rows});
  const ModelDirectory written = ModelDirectory::open(work / "out");
  EXPECT_EQ(written.config().at("vocab_size"), rows);
  EXPECT_FALSE(written.config().contains("quantization_config"));
  ASSERT_EQ(written.find(name).tensor->shape.front(), rows);
  const std::vector<float> values = read_whole(written, name);
  std::vector<float> expected(values.size());
  loader.read_parameter(name, 0, expected);
  EXPECT_EQ(bits_of(values), bits_of(expected));
  const std::string packed = kLayer + "mlp.up_proj.weight";
  EXPECT_EQ(bits_of(read_whole(written, packed)), bits_of(read_whole(source, packed)));
}

}  // namespace
}  // namespace longshore
