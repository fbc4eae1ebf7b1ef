// Corrections of a router's choice in bf16 compute: they are fp32, as transformers keeps them.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "model/units/router_load.h"
#include "tests/fakes/test_files.h"
#include "tests/model/golden_case.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

using Loads = std::vector<std::vector<int64_t>>;
using Weights = std::map<std::string, at::Tensor>;

class RouterCorrections : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    golden = read_golden_case(GetParam());
    golden.arch.moe.watched = true;
    facts =
        read_json_file(test_data() + "/parity/golden_correction.json", JsonLimits{}).at(GetParam());
    for (const auto& [name, values] : facts.at("corrections").items()) {
      golden.weights.at(name) = at::tensor(values.get<std::vector<float>>());
    }
  }

  // Returns the tokens of each expert by sparse layer in a forward in bf16.
  Loads loads_with(const Weights& weights, RouterLoad* used = nullptr) const {
    const DecoderModel model(golden.arch, make_model_spec(golden.arch, golden.file_tensors()), {});
    RouterLoad own(model.routers(), at::kCPU);
    RouterLoad& load = used == nullptr ? own : *used;
    load.begin();
    load.count(true);
    std::vector<std::vector<int64_t>> tokens, targets;
    for (size_t row = 0; row < facts.at("rows").get<size_t>(); ++row) {
      tokens.push_back(golden.rows.at(row).tokens);
      targets.push_back(golden.rows.at(row).targets);
    }
    MicroBatch batch = PlainRunner::make_batch(tokens, targets);
    batch.routers = &load;
    PlainRunner(model, weights, at::kBFloat16).loss(batch);
    return router_statistics(model.routers(), load.sums()).load;
  }

  GoldenCase golden;
  Json facts;
};

// Goal: corrections that bf16 cannot tell apart choose the experts that transformers chooses.
TEST_P(RouterCorrections, ChooseAsTransformersInBf16) {
  EXPECT_EQ(loads_with(golden.weights), facts.at("load").get<Loads>());
}

// Goal: the test above would see corrections that are rounded.
TEST_P(RouterCorrections, RoundedOnesChooseOthersInEveryLayer) {
  Weights rounded = golden.weights;
  for (const auto& [name, values] : facts.at("corrections").items()) {
    rounded.at(name) = rounded.at(name).to(at::kBFloat16).to(at::kFloat);
  }
  const Loads found = loads_with(rounded), wanted = facts.at("load").get<Loads>();
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t layer = 0; layer < found.size(); ++layer) EXPECT_NE(found[layer], wanted[layer]);
}

// Goal: corrections that a run has set are used in place of the parameters'.
TEST_P(RouterCorrections, SetOnesReplaceTheParameters) {
  const DecoderModel model(golden.arch, make_model_spec(golden.arch, golden.file_tensors()), {});
  RouterLoad load(model.routers(), at::kCPU);
  const RouterShape shape = model.routers();
  std::vector<float> all(static_cast<size_t>(shape.layers * shape.experts));
  Weights zeroed = golden.weights;
  const auto places = correction_places(golden.arch, model.spec());
  EXPECT_EQ(places.size(), facts.at("load").size());
  for (const auto& [name, place] : places) {
    const auto values = facts.at("corrections").at(name).get<std::vector<float>>();
    std::ranges::copy(values, all.begin() + place);
    zeroed.at(name) = at::zeros_like(zeroed.at(name));
  }
  load.set_corrections(all);
  EXPECT_EQ(loads_with(zeroed, &load), facts.at("load").get<Loads>());
}

INSTANTIATE_TEST_SUITE_P(Families, RouterCorrections,
                         testing::Values("glm4_moe", "deepseek_v3", "nemotron_h-moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace longshore
