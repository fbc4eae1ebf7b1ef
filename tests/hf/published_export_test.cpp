// Exports in the form in which a model was published: matrices in MXFP4 and block-scaled fp8 are
// packed again, with what training left alone byte for byte.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/fp8.h"
#include "base/json.h"
#include "base/mxfp4.h"
#include "hf/exporter.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "tests/fakes/test_files.h"
#include "tests/hf/hf_fixtures.h"
#include "tests/hf/packed_bytes.h"

namespace longshore {
namespace {

const std::string kFp8 = test_data() + "/hf/fp8";
const std::string kMxfp4 = test_data() + "/hf/mxfp4";
const std::string kLayer = "model.layers.0.";
const std::string kQuery = kLayer + "self_attn.q_proj.weight";
const std::string kDown = kLayer + "mlp.experts.down_proj";

using Values = std::map<std::string, std::vector<float>>;

// Trained: a model whose parameters have the values of its files, but where a test changes them.
struct Trained {
  explicit Trained(const std::string& directory) : source(ModelDirectory::open(directory)) {
    for (const ModelDirectory::TensorRef& ref : source.tensors()) {
      values[ref.tensor->name] = read_whole(source, ref.tensor->name);
    }
  }

  ModelSpec spec(bool frozen = false) const {
    std::vector<ParamSpec> parameters;
    for (const ModelDirectory::TensorRef& ref : source.tensors()) {
      parameters.push_back(parameter(ref.tensor->name, ref.tensor->shape, frozen));
    }
    return spec_of(parameters);
  }

  ExportResult write(const std::string& to, ExportOptions options = {.published = true},
                     bool frozen = false) const {
    const ParameterReader read = [this](const std::string& name, int64_t begin,
                                        std::span<float> out) {
      std::copy_n(values.at(name).begin() + begin, out.size(), out.begin());
    };
    return export_model(source, spec(frozen), to, read, options);
  }

  ModelDirectory source;
  Values values;
};

std::vector<std::byte> stored_bytes(const ModelDirectory& directory, const std::string& name) {
  const ModelDirectory::TensorRef ref = directory.find_stored(name);
  EXPECT_TRUE(ref) << name;
  std::vector<std::byte> bytes(static_cast<size_t>(ref.tensor->bytes));
  ref.file->file.read(*ref.tensor, 0, bytes);
  return bytes;
}

// Returns the names of the stored tensors whose bytes differ. The test fails if files, names, types
// or shapes do.
std::set<std::string> changed_tensors(const ModelDirectory& source, const std::string& written) {
  std::set<std::string> changed;
  const ModelDirectory other = ModelDirectory::open(written);
  EXPECT_EQ(other.files().size(), source.files().size());
  for (const auto& file : source.files()) {
    const SafetensorsFile copy = SafetensorsFile::open(written + "/" + file->name);
    EXPECT_EQ(copy.tensors().size(), file->file.tensors().size());
    for (const TensorInfo& tensor : file->file.tensors()) {
      const TensorInfo& found = copy.tensor(tensor.name);
      EXPECT_EQ(found.dtype, tensor.dtype) << tensor.name;
      EXPECT_EQ(found.shape, tensor.shape) << tensor.name;
      if (copy.hash(found) != file->file.hash(tensor)) changed.insert(tensor.name);
    }
  }
  EXPECT_EQ(other.config_text(), source.config_text());
  EXPECT_EQ(other.index_text(), source.index_text());
  return changed;
}

// Goal: parameters with the values of the files keep all published bytes, whatever codes and scales
// stand for them: every exponent of MXFP4, scales of each type, blocks that the end of a matrix
// cuts. So do frozen ones, which are not packed at all.
TEST(PublishedExport, KeepsTheBytesOfWhatDidNotChange) {
  for (const std::string& model : {kFp8, kMxfp4}) {
    for (const bool frozen : {false, true}) {
      const TemporaryDirectory work;
      const Trained trained(model);
      const ExportResult result = trained.write(work / "out", {.published = true}, frozen);
      EXPECT_EQ(changed_tensors(trained.source, work / "out"), std::set<std::string>());
      EXPECT_EQ(result.packed.empty(), frozen);
      for (const PackedParameter& parameter : result.packed) {
        EXPECT_EQ(parameter.change.relative_error(), 0.0) << parameter.name;
        EXPECT_EQ(parameter.change.surviving(), 1.0) << parameter.name;
      }
    }
  }
}

// Goal: one changed value gives its block the codes and the scale of encode_fp8_rows, and all other
// blocks keep theirs; for scales of every type, and in a stack of matrices.
TEST(PublishedExport, PacksOnlyTheBlocksThatChanged) {
  Trained trained(kFp8);
  for (const auto& [name, type] :
       {std::pair(kQuery, Fp8Scale::kF32), std::pair(kLayer + "mlp.up_proj.weight", Fp8Scale::kF32),
        std::pair(kDown, Fp8Scale::kBF16),
        std::pair(kLayer + "mlp.down_proj.weight", Fp8Scale::kPowerOfTwo),
        std::pair(kLayer + "mlp.gate_proj.weight", Fp8Scale::kPowerOfTwo)}) {
    const TemporaryDirectory work;
    const std::vector<float> whole = trained.values.at(name);
    trained.values.at(name).back() *= 1.5F;
    trained.write(work / "out");
    EXPECT_EQ(changed_tensors(trained.source, work / "out").count(name), 1u) << name;
    const ModelDirectory written = ModelDirectory::open(work / "out");
    const std::vector<float> values = read_whole(written, name);
    const std::vector<int64_t>& shape = written.find(name).tensor->shape;
    const int64_t columns = shape.back(), rows = shape.at(shape.size() - 2);
    const int64_t first_row = rows - 1 - (rows - 1) % 128;
    const auto begin = static_cast<size_t>(std::ssize(whole) - (rows - first_row) * columns);
    const std::span<const float> last_rows = std::span(trained.values.at(name)).subspan(begin);
    std::vector<float> scales(static_cast<size_t>((columns + 127) / 128));
    std::vector<uint8_t> codes(last_rows.size());
    encode_fp8_rows(last_rows, columns, type, scales, codes);
    for (size_t i = 0; i < whole.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) % columns;
      float expected = whole[i];
      if (i >= begin && column / 128 == (columns - 1) / 128) {
        decode_fp8_block(std::span(codes).subspan(i - begin, 1), scales.back(),
                         std::span(&expected, 1));
      }
      ASSERT_EQ(values[i], expected) << name << " " << i;
    }
    trained.values.at(name) = whole;
  }
}

// The files of a matrix in fp8 whose scales come first, as libraries order tensors of wide types.
void write_scales_first(const std::string& directory, const std::string& config,
                        TensorDType scales = TensorDType::kF32) {
  std::filesystem::create_directories(directory);
  write_text(directory + "/config.json", config);
  write_safetensors(directory + "/model.safetensors",
                    {{"w_scale_inv", scales, {2, 1}}, {"w", TensorDType::kF8E4M3, {130, 3}}});
}

constexpr const char* kFp8Config =
    R"({"model_type": "llama", "quantization_config": {"quant_method": "fp8",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}})";

// Goal: scales that the file holds before their codes belong to them, and values count once in the
// sums that are reported.
TEST(PublishedExport, WritesScalesThatComeFirst) {
  const TemporaryDirectory work;
  write_scales_first(work / "model", kFp8Config);
  Trained trained(work / "model");
  for (float& value : trained.values.at("w")) value += 1.0F;
  const ExportResult result = trained.write(work / "out");
  ASSERT_EQ(result.packed.size(), 1u);
  EXPECT_NEAR(result.packed[0].change.change, 130.0 * 3.0, 1e-3);
  const std::vector<float> values = read_whole(ModelDirectory::open(work / "out"), "w");
  double size = 0.0, error = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double trained_value = trained.values.at("w")[i];
    EXPECT_NEAR(values[i], trained_value, std::fabs(trained_value) / 14.0 + 0.01);
    size += trained_value * trained_value;
    error += (values[i] - trained_value) * (values[i] - trained_value);
  }
  EXPECT_NEAR(result.packed[0].change.relative_error(), std::sqrt(error / size), 1e-9);
}

// Goal: with scale_fmt "ue8m0" new scales are powers of two, although the files hold them in fp32.
TEST(PublishedExport, ScalesArePowersOfTwoWhereTheModelSaysSo) {
  const TemporaryDirectory work;
  Json config = Json::parse(kFp8Config);
  config["quantization_config"]["scale_fmt"] = "ue8m0";
  write_scales_first(work / "model", config.dump());
  Trained trained(work / "model");
  for (float& value : trained.values.at("w")) value = value * 3.0F + 1.0F;
  trained.write(work / "out");
  const std::vector<std::byte> bytes =
      stored_bytes(ModelDirectory::open(work / "out"), "w_scale_inv");
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    float scale = 0.0F;
    std::memcpy(&scale, bytes.data() + i, sizeof(scale));
    EXPECT_EQ(scale, std::exp2(std::rint(std::log2(scale))));
  }
}

// Goal: changed groups of MXFP4 are those of encode_mxfp4_group over the inputs of an output, with
// the blocks in one file and the scales in another; all other groups keep codes and exponents.
TEST(PublishedExport, PacksGroupsOfInputs) {
  const TemporaryDirectory work;
  Trained trained(kMxfp4);
  const std::vector<float> base = trained.values.at(kDown);
  std::vector<float>& values = trained.values.at(kDown);  // [2 experts, 64 inputs, 33 outputs]
  std::mt19937 random(4);
  for (int64_t input = 32; input < 64; ++input) {
    values[static_cast<size_t>(64 * 33 + input * 33 + 17)] =
        static_cast<float>(random() % 1000) / 37.0F - 12.0F;
  }
  trained.write(work / "out");
  EXPECT_EQ(changed_tensors(trained.source, work / "out"),
            (std::set<std::string>{kDown + "_blocks", kDown + "_scales"}));
  const ModelDirectory written = ModelDirectory::open(work / "out");
  const std::vector<std::byte> blocks = stored_bytes(written, kDown + "_blocks");
  const std::vector<std::byte> scales = stored_bytes(written, kDown + "_scales");
  const std::vector<std::byte> old = stored_bytes(trained.source, kDown + "_blocks");
  const std::vector<std::byte> old_scales = stored_bytes(trained.source, kDown + "_scales");
  for (size_t group = 0; group < scales.size(); ++group) {
    std::array<uint8_t, 16> codes{};
    std::memcpy(codes.data(), old.data() + group * 16, 16);
    auto exponent = std::to_integer<uint8_t>(old_scales[group]);
    if (group == (33 + 17) * 2 + 1) {
      std::array<float, 32> inputs{};
      for (size_t i = 0; i < 32; ++i) inputs[i] = values[64 * 33 + (32 + i) * 33 + 17];
      exponent = encode_mxfp4_group(inputs, codes);
    }
    EXPECT_EQ(std::to_integer<uint8_t>(scales[group]), exponent) << group;
    EXPECT_EQ(std::memcmp(blocks.data() + group * 16, codes.data(), 16), 0) << group;
  }
}

// Goal: a change below half a step of the format is lost, one of many steps survives, and the sums
// say so.
TEST(PublishedExport, SaysWhatSurvives) {
  const auto survived = [](float factor) {
    const TemporaryDirectory work;
    Trained trained(kMxfp4);
    for (float& value : trained.values.at(kDown)) value *= factor;
    const ExportResult result = trained.write(work / "out");
    for (const PackedParameter& parameter : result.packed) {
      if (parameter.name == kDown) return parameter.change.surviving();
    }
    return -1.0;
  };
  EXPECT_LT(survived(1.001F), 0.05);
  EXPECT_GT(survived(-1.0F), 0.999);
  EXPECT_EQ(survived(2.0F), 1.0);
}

// Goal: a model that was not published packed, one of bitsandbytes, random weights, and a parameter
// of another shape than the blocks have, are refused before anything is written.
TEST(PublishedExport, IsRefusedWhereThereIsNoPublishedForm) {
  const TemporaryDirectory work;
  const auto refusal = [&](const Trained& trained, const ExportOptions& options) {
    const std::string text = error_of<ConfigError>([&] { trained.write(work / "out", options); });
    EXPECT_FALSE(std::filesystem::exists(work / "out"));
    return text;
  };
  write_text(work / "plain/config.json", R"({"model_type": "llama"})");
  write_safetensors(work / "plain/model.safetensors", {{"w", TensorDType::kBF16, {2, 2}}});
  expect_parts(refusal(Trained(work / "plain"), {.published = true}),
               {"plain was not published in a packed format", "bf16"});
  expect_parts(refusal(Trained(test_data() + "/hf/nf4/double"), {.published = true}),
               {"bitsandbytes' NF4", "not written"});
  expect_parts(refusal(Trained(kFp8), {.pretrained = false, .published = true}),
               {"random weights"});
  write_scales_first(work / "grown", kFp8Config);
  const Trained grown(work / "grown");
  ModelSpec spec = grown.spec();
  spec.units[0].parameters[0].shape[0] += 1;
  spec.units[0].parameters[0].added_rows = 1;
  expect_parts(error_of<ConfigError>([&] { plan_export(grown.source, spec, {.published = true}); }),
               {"tensor 'w' is packed as [130, 3]", "[131, 3]", "does not divide"});
}

// Goal: a value that no packed form holds is named, also with allow_nonfinite, and nothing appears.
TEST(PublishedExport, NamesAValueThatIsNotFinite) {
  const TemporaryDirectory work;
  Trained trained(kMxfp4);
  trained.values.at(kDown)[40] = std::numeric_limits<float>::infinity();
  for (const bool allowed : {false, true}) {
    expect_parts(error_of<DataError>([&] {
                   trained.write(work / "out", {.published = true, .allow_nonfinite = allowed});
                 }),
                 {"tensor '" + kDown + "' holds inf (element 40)", "--format bf16"});
    EXPECT_FALSE(std::filesystem::exists(work / "out"));
  }
}

}  // namespace
}  // namespace longshore
