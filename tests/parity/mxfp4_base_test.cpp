// Adapters over gpt_oss in MXFP4: its experts stay packed in host memory or in the files, with the
// bits of a run over the values that they stand for.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hf/model_directory.h"
#include "hf/safetensors_writer.h"
#include "hf/weight_loader.h"
#include "tests/parity/partly_resident.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

constexpr const char* kGolden = "gpt_oss-mxfp4";

// Writes the model's values in fp32, without quantization_config.
void write_values(const std::string& to) {
  const ModelDirectory model = ModelDirectory::open(golden_directory(kGolden));
  std::filesystem::create_directories(to);
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const ModelDirectory::TensorRef& ref : model.tensors()) {
    tensors.push_back({ref.tensor->name, TensorDType::kF32, ref.tensor->shape});
  }
  SafetensorsWriter writer(to + "/model.safetensors", tensors, {{"format", "pt"}});
  for (const ModelDirectory::TensorRef& ref : model.tensors()) {
    std::vector<float> values(static_cast<size_t>(ref.tensor->elements()));
    read_elements(ref, 0, values);
    writer.append(std::as_bytes(std::span(values)));
  }
  writer.finish();
  Json config = model.config();
  config.erase("quantization_config");
  std::ofstream(to + "/config.json") << config.dump(2);
}

class Mxfp4Base : public testing::Test {
 protected:
  Mxfp4Base() : values_(scratch_directory("mxfp4-unpacked")) { write_values(values_); }
  ~Mxfp4Base() override { std::filesystem::remove_all(values_); }

  static Arguments adapters_over(const std::string& directory, const Arguments& more = {}) {
    return joined(
        joined(RunDriver::golden_arguments(kGolden),
               {"--model.path=\"" + directory + "\"", "--adapter.kind=lora", "--adapter.r=4",
                "--adapter.targets=[\"attention\", \"mlp\"]", "--train.steps=4",
                "--train.sequences_per_step=4", "--train.max_grad_norm=0"}),
        more);
  }

  std::string values_;
};

// The experts have adapters too, and are units of their own.
TEST_F(Mxfp4Base, GivesTheBitsOfItsValues) {
  for (const std::string compute : {"fp32", "bf16"}) {
    const Arguments precision = {"--precision.compute=" + compute};
    RunDriver reference("mxfp4-values");
    ASSERT_EQ(reference.train(adapters_over(values_, precision)), 0);
    for (const Arguments& variant :
         std::vector<Arguments>{{},
                                {"--fsdp.recompute=none", "--fsdp.prefetch=3"},
                                {"--fsdp.units={ rows = 100000 }", "--offload.activations=host"},
                                {"--offload.parameters=files"},
                                {"--offload.parameters=files", "--fsdp.units={ rows = 100000 }",
                                 "--optimizer.overlap=backward"}}) {
      RunDriver run("mxfp4");
      ASSERT_EQ(run.train(joined(adapters_over(golden_directory(kGolden), precision), variant)), 0);
      EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << compute << variant.size();
      EXPECT_TRUE(run.state() == reference.state()) << compute << variant.size();
    }
  }
}

// Copies to the device and reads from the files have the packed bytes, as planned; the merged model
// is bf16.
TEST_F(Mxfp4Base, MovesThePackedBytes) {
  const Arguments precision = {"--precision.compute=bf16", "--fsdp.units={ rows = 100000 }"};
  const Arguments all = adapters_over(golden_directory(kGolden), precision);
  RunDriver run("mxfp4"), files("mxfp4-files"), reference("mxfp4-values");
  ASSERT_EQ(run.train(all), 0);
  ASSERT_EQ(reference.train(adapters_over(values_, precision)), 0);
  const auto copied = [](const RunDriver& of) {
    return of.plan(1).at("step").at("h2d_bytes").get<int64_t>();
  };
  EXPECT_LT(copied(run), copied(reference));
  EXPECT_EQ(run.metrics("step").back().at("bytes").at("file_read"), 0);
  ASSERT_EQ(files.train(partly_resident(run, all)), 0);
  const int64_t planned = files.plan(1).at("step").at("files_read_bytes").get<int64_t>();
  EXPECT_GT(planned, 0);
  EXPECT_EQ(files.metrics("step").back().at("bytes").at("file_read"), planned);
  EXPECT_TRUE(files.state() == run.state());

  const std::string to = run.directory() + "/merged";
  ASSERT_EQ(
      run_command({"export", run.directory() + "/config.toml", "--to", to, "--merged"}).exit_code,
      0);
  EXPECT_FALSE(read_json_file(to + "/config.json", {}).contains("quantization_config"));
}

// A damaged scale is named when the experts are read, before a step counts.
TEST_F(Mxfp4Base, NamesADamagedScale) {
  const std::string damaged = scratch_directory("mxfp4-damaged");
  std::filesystem::create_directories(damaged);
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(golden_directory(kGolden) + "/" + name, damaged);
  }
  const ModelDirectory model = ModelDirectory::open(damaged);
  const auto scales = model.find_stored("model.layers.0.mlp.experts.gate_up_proj_scales");
  ASSERT_TRUE(scales);
  std::fstream file(damaged + "/model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(scales.tensor->file_begin + scales.tensor->bytes - 1);
  file.put('\xff');
  file.close();
  for (const char* tier : {"host", "files"}) {
    RunDriver run("mxfp4-damaged-run");
    testing::internal::CaptureStderr();
    EXPECT_EQ(run.train(adapters_over(damaged, {"--offload.parameters=" + std::string(tier)})), 5);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("a scale of expert 3"), std::string::npos)
        << tier;
  }
  std::filesystem::remove_all(damaged);
}

}  // namespace
}  // namespace longshore
