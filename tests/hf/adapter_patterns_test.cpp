// Adapters of PEFT whose modules have ranks and alphas of their own.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "hf/adapter_directory.h"
#include "tests/fakes/test_files.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

const std::string kFirst = "model.layers.0.self_attn.q_proj";
const std::string kThird = "model.layers.2.self_attn.q_proj";

// An adapter of two modules with the ranks 16 and 2.
class AdapterPatterns : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const auto& [module, rank] : {std::pair<std::string, int64_t>{kFirst, 16}, {kThird, 2}}) {
      const std::string name = std::string(kAdapterNamePrefix) + module;
      tensors.push_back({name + ".lora_A.weight", TensorDType::kF32, {rank, 6}});
      tensors.push_back({name + ".lora_B.weight", TensorDType::kF32, {5, rank}});
    }
    write_safetensors(directory_ / "adapter_model.safetensors", tensors);
  }
  AdapterDirectory open(const std::string& ranks, const std::string& alphas = "{}") const {
    const Json config = {{"peft_type", "LORA"},
                         {"r", 4},
                         {"target_modules", {"q_proj"}},
                         {"rank_pattern", Json::parse(ranks)},
                         {"alpha_pattern", Json::parse(alphas)}};
    write_text(directory_ / "adapter_config.json", config.dump());
    return AdapterDirectory::open(directory_.path());
  }

  TemporaryDirectory directory_;
};

// Goal: a module's rank is that of the first pattern that matches, in the order of the file, and
// settings are written back with the patterns as they were.
TEST_F(AdapterPatterns, GiveRanksInTheOrderOfTheFile) {
  // The order is not that of the alphabet.
  const std::string ranks = R"({"model.layers.2.self_attn.q_proj":2,"^model.*q_proj":16})";
  const std::string alphas = R"({"layers.0.*":0.5})";
  const AdapterSettings settings = open(ranks, alphas).settings();
  EXPECT_EQ(settings.ranks, (std::vector<PatternNumber>{{"model.layers.2.self_attn.q_proj", 2.0},
                                                        {"^model.*q_proj", 16.0}}));
  EXPECT_EQ(settings.alphas, (std::vector<PatternNumber>{{"layers.0.*", 0.5}}));
  const Json written = Json::parse(adapter_config_text(settings));
  EXPECT_EQ(written.at("rank_pattern").dump(), ranks);
  EXPECT_EQ(written.at("alpha_pattern").dump(), alphas);
}

// A tensor with another rank than its pattern's is refused by name and both shapes.
TEST_F(AdapterPatterns, RefuseTensorsOfOtherRanks) {
  expect_parts(error_of<DataError>(
                   [this] { open(R"({"q_proj": 16, "^model.layers.2.self_attn.q_proj": 2})"); }),
               {kThird, "shape [2, 6]", "[16, inputs]"});
  expect_parts(error_of<DataError>([this] { open(R"({"layers.2.self_attn.q_proj": 2})"); }),
               {kFirst, "shape [16, 6]", "[4, inputs]"});
}

}  // namespace
}  // namespace longshore
