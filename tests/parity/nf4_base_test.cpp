// Adapters over models that bitsandbytes packed in NF4: codes and scales stay as the files hold
// them, with the bits of a run over the bf16 values that they stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/nf4.h"
#include "base/number_formats.h"
#include "hf/model_directory.h"
#include "hf/nf4_tensor.h"
#include "hf/safetensors_reader.h"
#include "hf/weight_loader.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/fp8_model.h"
#include "tests/parity/partly_resident.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

// The tensors of a file in the order of their widths, as safetensors writes them.
class Contents {
 public:
  void add(const std::string& name, TensorDType dtype, std::vector<int64_t> shape,
           std::span<const std::byte> bytes) {
    parts_.push_back({{name, dtype, std::move(shape)}, {bytes.begin(), bytes.end()}});
  }
  void write(const std::string& path) {
    std::ranges::stable_sort(parts_, std::ranges::greater(),
                             [](const Part& part) { return width_of(part.tensor.dtype); });
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const Part& part : parts_) tensors.push_back(part.tensor);
    SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
    for (const Part& part : parts_) writer.append(part.bytes);
    writer.finish();
  }

 private:
  struct Part {
    SafetensorsWriter::Tensor tensor;
    std::vector<std::byte> bytes;
  };
  std::vector<Part> parts_;
};

// Returns the largest magnitude of each block.
std::vector<float> scales_of(std::span<const float> values) {
  std::vector<float> scales((values.size() + 63) / 64);
  for (size_t i = 0; i < values.size(); ++i) {
    scales[i / 64] = std::max(scales[i / 64], std::fabs(values[i]));
  }
  return scales;
}

// Adds a matrix in NF4, and replaces its values by those that the files then stand for.
void add_packed(Contents& contents, const std::string& name, const std::vector<int64_t>& shape,
                bool nested, std::vector<float>& values) {
  const Nf4Layout layout(shape[0] * shape[1]);
  const std::vector<std::byte> packed = packed_matrix(PackedFormat::kNf4, shape, values);
  const auto part = [&packed](Bytes begin, Bytes count) {
    return std::span(packed).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  };
  const std::span<const std::byte> codes = part(layout.codes_begin(), (layout.elements() + 1) / 2);
  Json state = {{"quant_type", "nf4"}, {"blocksize", 64}, {"dtype", "bfloat16"}, {"shape", shape}};
  contents.add(name, TensorDType::kU8, {std::ssize(codes), 1}, codes);
  contents.add(name + ".quant_map", TensorDType::kF32, {16}, std::as_bytes(std::span(kNf4Levels)));
  if (nested) {
    float mean = 0.0F;
    std::memcpy(&mean, packed.data(), sizeof(mean));
    state["nested_blocksize"] = 256;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = static_cast<double>(mean);
    contents.add(name + ".absmax", TensorDType::kU8, {layout.blocks()},
                 part(layout.scales_begin(), layout.blocks()));
    contents.add(name + ".nested_absmax", TensorDType::kF32, {layout.groups()},
                 part(layout.largest_begin(), 4 * layout.groups()));
    contents.add(name + ".nested_quant_map", TensorDType::kF32, {256},
                 std::as_bytes(std::span(nf4_scale_levels())));
    decode_nf4(layout, packed, 0, values);
  } else {
    const std::vector<float> scales = scales_of(values);
    const Nf4F32Layout plain(layout.elements());
    std::vector<std::byte> whole(static_cast<size_t>(plain.bytes()));
    std::memcpy(whole.data(), scales.data(), scales.size() * sizeof(float));
    std::ranges::copy(codes, whole.begin() + plain.codes_begin());
    contents.add(name + ".absmax", TensorDType::kF32, {plain.blocks()},
                 std::as_bytes(std::span(scales)));
    decode_nf4_f32(plain, whole, 0, values);
  }
  const std::string text = state.dump();
  contents.add(name + std::string(kNf4State), TensorDType::kU8, {std::ssize(text)},
               std::as_bytes(std::span(text)));
  for (float& value : values) value = bf16_to_float(float_to_bf16_nearest(value));
}

// Writes the model in NF4 and replaces its values by those that the files then stand for. Stacked
// experts stay as they are, as in bitsandbytes.
void write_in_nf4(EditedModel& model, bool nested) {
  Contents contents;
  for (auto& [name, values] : model.values) {
    const std::vector<int64_t>& shape = model.shapes.at(name);
    const bool of_gpt2 = name.ends_with(".c_fc.weight");
    if (of_gpt2 || (shape.size() == 2 && is_packed_matrix(name, shape))) {
      add_packed(contents, name, shape, nested, values);
    } else {
      contents.add(name, TensorDType::kF32, shape, std::as_bytes(std::span(values)));
    }
  }
  contents.write(model.directory() + "/model.safetensors");
  const std::string path = model.directory() + "/config.json";
  Json config = read_json_file(path, {});
  config["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                   {"load_in_4bit", true},
                                   {"bnb_4bit_quant_type", "nf4"},
                                   {"bnb_4bit_use_double_quant", nested}};
  std::filesystem::remove(path);
  std::ofstream(path) << config.dump(2);
}

// A model in NF4, and one of its values.
struct Models {
  Models(const std::string& golden, bool nested) : model(golden), values(golden, "-values") {
    write_in_nf4(model, nested);
    values.values = model.values;
    values.write();
  }
  EditedModel model, values;
};

Arguments over(const EditedModel& model, const std::string& golden, const std::string& compute) {
  return joined(RunDriver::golden_arguments(golden),
                {"--model.path=\"" + model.directory() + "\"", "--train.steps=3",
                 "--precision.compute=" + compute});
}
Arguments adapters_over(const EditedModel& model, const std::string& golden,
                        const std::string& compute) {
  return joined(over(model, golden, compute),
                {"--adapter.kind=lora", "--adapter.r=4", "--train.max_grad_norm=0",
                 "--adapter.targets=[\"attention\"]"});
}

// Codes and scales stay packed until a unit runs, whatever is kept and fetched ahead, also where
// adapter.base names the format that the files have. A run in fp32 has the bits of the same values.
TEST(Nf4Base, GivesAdaptersTheBitsOfItsBf16Values) {
  for (const auto& [golden, nested] : std::vector<std::pair<std::string, bool>>{
           {"llama", true}, {"llama", false}, {"phi3", true}, {"qwen3_moe", true}}) {
    const Models models(golden, nested);
    for (const std::string compute : {"bf16", "fp32"}) {
      RunDriver reference("nf4-values");
      ASSERT_EQ(reference.train(adapters_over(models.values, golden, compute)), 0);
      std::vector<Arguments> variants = {{}, {"--adapter.base=nf4"}};
      if (compute == "bf16") {
        variants.push_back(Arguments{"--fsdp.recompute=none", "--fsdp.prefetch=3"});
        variants.push_back(Arguments{"--fsdp.units={ rows = 100000 }"});
        variants.push_back(Arguments{"--fsdp.units=half"});
      }
      for (const Arguments& variant : variants) {
        RunDriver run("nf4");
        ASSERT_EQ(run.train(joined(adapters_over(models.model, golden, compute), variant)), 0);
        EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << golden << compute << nested;
        EXPECT_TRUE(run.state() == reference.state()) << golden << compute << nested;
      }
    }
  }
}

// Trained in full, and read from the files while adapters train.
TEST(Nf4Base, TrainsAsItsBf16ValuesInFullAndFromFiles) {
  for (const bool nested : {true, false}) {
    const Models models("llama", nested);
    RunDriver run("nf4"), reference("nf4-values"), files("nf4-files"), adapters("nf4-adapters");
    ASSERT_EQ(run.train(over(models.model, "llama", "bf16")), 0);
    ASSERT_EQ(reference.train(over(models.values, "llama", "bf16")), 0);
    EXPECT_EQ(run.steps("loss"), reference.steps("loss"));
    EXPECT_TRUE(run.state() == reference.state());

    const Arguments all = adapters_over(models.model, "llama", "bf16");
    ASSERT_EQ(adapters.train(all), 0);
    ASSERT_EQ(files.train(partly_resident(adapters, all)), 0);
    EXPECT_TRUE(files.state() == adapters.state());
    const int64_t planned = files.plan(1).at("step").at("files_read_bytes").get<int64_t>();
    EXPECT_GT(planned, 0);
    EXPECT_EQ(files.metrics("step").back().at("bytes").at("file_read"), planned);
  }
}

// Two ranks hold shards of the packed bytes, which begin and end inside of scales and codes.
TEST(Nf4Base, GivesTwoRanksTheBitsOfItsBf16Values) {
  for (const bool nested : {true, false}) {
    const Models models("llama", nested);
    RunDriver run("nf4"), reference("nf4-values");
    ASSERT_EQ(reference.train_ranks(2, adapters_over(models.values, "llama", "bf16")), 0)
        << reference.output();
    ASSERT_EQ(run.train_ranks(2, adapters_over(models.model, "llama", "bf16")), 0) << run.output();
    EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << nested;
    EXPECT_TRUE(run.state() == reference.state()) << nested;
  }
}

// A run does not go on over a base whose mean of scales, which is in the JSON of the quantisation
// state alone, is another one.
TEST(Nf4Base, NamesAChangedQuantisationState) {
  const Models models("llama", true);
  const Arguments all = adapters_over(models.model, "llama", "bf16");
  RunDriver run("nf4-changed");
  ASSERT_EQ(run.train(all), 0);
  const std::string path = models.model.directory() + "/model.safetensors";
  const std::string name = "model.layers.1.mlp.down_proj.weight" + std::string(kNf4State);
  const auto file = SafetensorsFile::open(path);
  const TensorInfo& state = file.tensor(name);
  std::string text(static_cast<size_t>(state.bytes), ' ');
  file.read(state, 0, std::as_writable_bytes(std::span(text)));
  const size_t digit = text.find('.', text.find("nested_offset")) + 1;
  ASSERT_LT(digit, text.size());
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(state.file_begin + static_cast<Bytes>(digit));
  stream.put(text[digit] == '1' ? '2' : '1');
  stream.close();
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.train(joined(all, {"--train.steps=4"})), 6);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("tensor '" + name + "' has other values"),
            std::string::npos);
}

// Copies to the device have the packed bytes. The merged model is bf16 and says nothing of
// bitsandbytes; it has the values of the base where no adapter is.
TEST(Nf4Base, IsSmallAndMergesToBf16) {
  const auto copied = [](const RunDriver& of) {
    return of.plan(1).at("step").at("h2d_bytes").get<int64_t>();
  };
  const Models models("llama", true);
  RunDriver run("nf4"), reference("nf4-values");
  ASSERT_EQ(run.train(adapters_over(models.model, "llama", "bf16")), 0);
  ASSERT_EQ(reference.train(adapters_over(models.values, "llama", "bf16")), 0);
  EXPECT_LT(copied(run), copied(reference));
  const std::string to = run.directory() + "/merged";
  ASSERT_EQ(
      run_command({"export", run.directory() + "/config.toml", "--to", to, "--merged"}).exit_code,
      0);
  EXPECT_FALSE(read_json_file(to + "/config.json", {}).contains("quantization_config"));
  const ModelDirectory merged = ModelDirectory::open(to);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const ModelDirectory::TensorRef ref = merged.find(name);
  ASSERT_TRUE(ref);
  EXPECT_EQ(ref.tensor->dtype, TensorDType::kBF16);
  std::vector<float> values(static_cast<size_t>(ref.tensor->elements()));
  read_elements(ref, 0, values);
  EXPECT_EQ(values, models.model.values.at(name));
}

// The model and the adapter that transformers, bitsandbytes and PEFT wrote, trained by PEFT in fp32
// over the model's values: sums of fp32 in another order, over 20 steps.
TEST(Nf4Base, TrainsAsPeftOverTheModelOfBitsandbytes) {
  const std::string golden = test_data() + "/parity/golden_nf4";
  const Json facts = read_json_file(golden + "/golden.json", {});
  RunDriver run("nf4-peft");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama"),
                             {"--model.path=\"" + golden + "\"", "--adapter.kind=lora",
                              "--adapter.path=\"" + golden + "/adapter\"",
                              "--optimizer.lr=" + facts.at("lr").dump()})),
            0);
  for (const char* key : {"loss", "grad_norm"}) {
    const std::vector<double> found = run.steps(key);
    const auto expected = facts.at(key).get<std::vector<double>>();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << key << " of step " << i;
    }
  }
}

// A family whose matrices are stored transposed is refused before a step.
TEST(Nf4Base, IsRefusedForTransposedMatrices) {
  EditedModel model("gpt2");
  write_in_nf4(model, true);
  RunDriver run("nf4-transposed");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run.train(adapters_over(model, "gpt2", "bf16")), 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("transposed"), std::string::npos);
}

}  // namespace
}  // namespace longshore
