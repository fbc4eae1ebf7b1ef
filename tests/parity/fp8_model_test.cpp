// Models published in block-scaled fp8: a run has the bits of a run over the bf16 values that the
// files stand for, trained in full and under adapters, which keep codes and scales packed.
#include <gtest/gtest.h>

#include "tests/fakes/command_run.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/fp8_model.h"
#include "tests/parity/partly_resident.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

class Fp8Model : public testing::TestWithParam<std::string> {
 protected:
  Fp8Model() : model_(GetParam()), values_(GetParam(), "-values") {
    write_in_fp8(model_);
    values_.values = model_.values;
    values_.write();
  }

  static Arguments over(const EditedModel& model) {
    return joined(RunDriver::golden_arguments(GetParam()),
                  {"--model.path=\"" + model.directory() + "\"", "--train.steps=3",
                   "--precision.compute=bf16"});
  }
  static Arguments adapters_over(const EditedModel& model) {
    return joined(over(model), {"--adapter.kind=lora", "--adapter.r=4", "--train.max_grad_norm=0",
                                "--adapter.targets=[\"attention\"]"});
  }

  EditedModel model_, values_;
};

// Trained in full: losses, masters and moments.
TEST_P(Fp8Model, TrainsAsItsBf16Values) {
  RunDriver run("fp8"), reference("fp8-values");
  ASSERT_EQ(run.train(over(model_)), 0);
  ASSERT_EQ(reference.train(over(values_)), 0);
  EXPECT_EQ(run.steps("loss"), reference.steps("loss"));
  EXPECT_TRUE(run.state() == reference.state());
}

// Codes and scales stay packed until a unit runs, whatever is kept and fetched ahead.
TEST_P(Fp8Model, GivesAdaptersTheBitsOfItsBf16Values) {
  RunDriver reference("fp8-values");
  ASSERT_EQ(reference.train(adapters_over(values_)), 0);
  for (const Arguments& variant :
       std::vector<Arguments>{{},
                              {"--fsdp.recompute=none", "--fsdp.prefetch=3"},
                              {"--fsdp.units={ rows = 100000 }"},
                              {"--offload.parameters=files"},
                              {"--offload.parameters=files", "--fsdp.units=half"}}) {
    RunDriver packed("fp8");
    ASSERT_EQ(packed.train(joined(adapters_over(model_), variant)), 0);
    EXPECT_EQ(packed.steps("loss"), reference.steps("loss"));
    EXPECT_TRUE(packed.state() == reference.state());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Fp8Model,
                         testing::Values("llama", "deepseek_v3", "qwen3_moe-fused"),
                         golden_test_name);

// Codes and scales take half of the memory, also where they are read from the files as planned. The
// merged model is bf16 and says nothing of fp8. Without adapters the files are not read in a step.
TEST(Fp8Base, IsSmallAndMergesToBf16) {
  EditedModel model("llama"), values("llama", "-values");
  write_in_fp8(model);
  values.values = model.values;
  values.write();
  const auto adapters = [](const EditedModel& of) {
    return joined(RunDriver::golden_arguments("llama"),
                  {"--model.path=\"" + of.directory() + "\"", "--adapter.kind=lora",
                   "--train.steps=2", "--precision.compute=bf16"});
  };
  RunDriver run("fp8"), files("fp8-files"), refused("fp8-refused"), reference("fp8-values");
  ASSERT_EQ(run.train(adapters(model)), 0);
  ASSERT_EQ(reference.train(adapters(values)), 0);
  // Copies to the device have the packed bytes.
  EXPECT_LT(run.plan(1).at("step").at("h2d_bytes").get<int64_t>(),
            reference.plan(1).at("step").at("h2d_bytes").get<int64_t>());
  const std::string to = run.directory() + "/merged";
  ASSERT_EQ(
      run_command({"export", run.directory() + "/config.toml", "--to", to, "--merged"}).exit_code,
      0);
  EXPECT_FALSE(read_json_file(to + "/config.json", {}).contains("quantization_config"));
  ASSERT_EQ(files.train(partly_resident(run, adapters(model))), 0);
  EXPECT_TRUE(files.state() == run.state());
  const int64_t planned = files.plan(1).at("step").at("files_read_bytes").get<int64_t>();
  EXPECT_GT(planned, 0);
  EXPECT_EQ(files.metrics("step").back().at("bytes").at("file_read"), planned);
  testing::internal::CaptureStderr();
  EXPECT_EQ(
      refused.train(joined(adapters(model), {"--offload.parameters=files", "--adapter.kind=none",
                                             "--train.freeze=[\"model.layers.*\"]"})),
      2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("stores weights in fp8"),
            std::string::npos);
}

}  // namespace
}  // namespace longshore
