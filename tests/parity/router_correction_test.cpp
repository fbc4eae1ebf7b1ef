// The corrections of routers' choices (e_score_correction_bias) in whole runs. In bf16 compute they
// are fp32 on every tier and rank, as in transformers, and their exports have the file's bytes.
#include <gtest/gtest.h>

#include "base/json.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

Json golden_corrections(const std::string& name) {
  return read_json_file(test_data() + "/parity/golden_correction.json", JsonLimits{}).at(name);
}

// A golden model with corrections that bf16 cannot tell apart, in fp32 files.
class CorrectedModel {
 public:
  explicit CorrectedModel(const std::string& name)
      : golden_(golden_corrections(name)), name_(name), model_(name, "-corrected") {
    for (const auto& [tensor, values] : golden_.at("corrections").items()) {
      model_.values.at(tensor) = corrections_[tensor] = values.get<std::vector<float>>();
    }
    model_.write();
  }

  Arguments arguments(const Arguments& more) const {
    return joined(joined(RunDriver::golden_arguments(name_),
                         {"--model.path=\"" + model_.directory() + "\"", "--precision.compute=bf16",
                          "--log.router=true", "--train.steps=2",
                          "--train.sequences_per_step=" + golden_.at("rows").dump()}),
                  more);
  }
  const std::map<std::string, std::vector<float>>& corrections() const { return corrections_; }
  // The tokens of each expert by sparse layer, as transformers' run in bf16 chooses.
  const Json& load() const { return golden_.at("load"); }

 private:
  Json golden_;
  std::string name_;
  EditedModel model_;
  std::map<std::string, std::vector<float>> corrections_;
};

class RouterCorrections : public testing::TestWithParam<std::string> {};

// Goal: wherever parameters are, and however they are gathered, the first step chooses the experts
// that transformers chooses with corrections in fp32. Rounded to bf16 they would choose others.
TEST_P(RouterCorrections, ChooseAsTransformersInBf16OnEveryTier) {
  const CorrectedModel model(GetParam());
  RunDriver reference("corrections-host");
  ASSERT_EQ(reference.train(model.arguments({})), 0);
  EXPECT_EQ(reference.metrics("step").at(0).at("router").at("load"), model.load());
  const std::string drive = "--offload.nvme=[\"" + scratch_directory("drive") + "\"]";
  for (const Arguments& way :
       std::vector<Arguments>{{"--fsdp.units=\"half\""},
                              {"--offload.state_format=fp32"},
                              {"--offload.optimizer=nvme", "--offload.parameters=nvme", drive}}) {
    RunDriver run("corrections");
    ASSERT_EQ(run.train(model.arguments(way)), 0);
    EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << way.front();
    EXPECT_EQ(run.metrics("step").at(0).at("router").at("load"), model.load()) << way.front();
    run.expect_within_plan();
  }
  for (const int ranks : {2, 4}) {
    RunDriver run("corrections-ranks");
    ASSERT_EQ(run.train_ranks(ranks, model.arguments({})), 0) << run.output();
    EXPECT_EQ(run.metrics("step").at(0).at("router").at("load"), model.load()) << ranks;
  }
}

// Goal: a frozen base, also one that stays in its files, has them in fp32 too.
TEST_P(RouterCorrections, StayFp32InAFrozenModelOnEveryTier) {
  const CorrectedModel model(GetParam());
  for (const Arguments& frozen : std::vector<Arguments>{
           {"--train.freeze=[\"model.layers.*\"]"},
           {"--adapter.kind=lora", "--adapter.r=4", "--adapter.targets=[\"attention\"]"}}) {
    RunDriver host("corrections-frozen");
    ASSERT_EQ(host.train(model.arguments(frozen)), 0);
    EXPECT_EQ(host.metrics("step").at(0).at("router").at("load"), model.load());
    for (const std::string tier : {"files", "nvme"}) {
      RunDriver run("corrections-tier");
      Arguments all = joined(model.arguments(frozen), {"--offload.parameters=" + tier});
      if (tier == "nvme") {
        all = joined(all, {"--offload.optimizer=nvme",
                           "--offload.nvme=[\"" + run.directory() + "/drive\"]"});
      }
      ASSERT_EQ(run.train(all), 0) << tier;
      EXPECT_EQ(run.steps("loss"), host.steps("loss")) << tier;
      EXPECT_TRUE(run.state() == host.state()) << tier;
      run.expect_within_plan();
    }
  }
}

// Goal: an export of a run in bf16 holds the file's fp32 values.
TEST_P(RouterCorrections, AreExportedAsTheFileHasThem) {
  const CorrectedModel model(GetParam());
  RunDriver run("corrections-export");
  ASSERT_EQ(run.train(model.arguments({"--checkpoint.export=end"})), 0);
  const auto exported = read_tensors(run.directory() + "/hf/model.safetensors");
  for (const auto& [name, values] : model.corrections()) {
    EXPECT_TRUE(exported.at(name) == values) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RouterCorrections, testing::Values("glm4_moe", "deepseek_v3"),
                         golden_test_name);

}  // namespace
}  // namespace longshore
