// Routers and experts agree with a plain computation in fp64 for every way tokens may be routed,
// and groups of experts give the same bits.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/decoder/sparse_units.h"
#include "model/families/random_init.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

using Recompute = PlainRunner::Recompute;
using Weights = std::map<std::string, at::Tensor>;

ArchSpec preset(const std::string& name) {
  const std::string text = init_preset_config(name, {.vocabulary = 97, .eos_token = 3});
  return read_arch_spec(Json::parse(text), name);
}

// Returns weights larger than those of init = "random", so that gates are not nearly linear.
Weights random_weights(const ModelSpec& spec) {
  Weights weights;
  for (const ParamSpec& parameter : spec.whole_parameters()) {
    at::Tensor tensor = at::empty(parameter.shape, at::kFloat);
    InitSpec init = parameter.init;
    if (init.kind == InitSpec::Kind::kNormal) init.standard_deviation = 0.2;
    fill_random(parameter.name, init, 5, 0,
                {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())});
    weights[parameter.name] = tensor;
  }
  return weights;
}

const std::vector<std::string> kPresets = {"tiny-qwen3-moe", "tiny-qwen2-moe", "tiny-mixtral",
                                           "tiny-olmoe", "tiny-gpt-oss"};

// PlainExperts: router and experts of layer 0 by autograd in fp64, over all experts with a mask.
class PlainExperts {
 public:
  PlainExperts(const ArchSpec& arch, const Weights& weights) : arch_(arch) {
    for (const ModuleParameter& one :
         block_parameters(arch, {.body = "model."}, 0, BlockPart::kMlp)) {
      leaves_[one.spec.name] =
          weights.at(one.spec.name).to(at::kDouble).detach().requires_grad_(true);
      names_[{one.module, one.role == ParameterRole::kBias, one.expert}] = one.spec.name;
    }
  }
  const Weights& leaves() const { return leaves_; }

  at::Tensor operator()(const at::Tensor& h) const {
    const MoeSpec& moe = arch_.moe;
    const at::Tensor scale = (h.square().mean(-1, true) + arch_.norm_eps).rsqrt();
    const at::Tensor x = h * scale * get(Module::kMlpNorm);
    at::Tensor scores = x.matmul(get(Module::kRouter).t());
    if (moe.router_bias) scores = scores + get(Module::kRouter, true);
    const bool over_all = moe.scores == RouterScores::kSoftmax;
    const at::Tensor ranked = over_all ? scores.softmax(-1) : scores;
    const at::Tensor chosen =
        std::get<1>(at::sort(ranked.detach(), true, 1, true)).narrow(1, 0, moe.top_k);
    at::Tensor weights = ranked.gather(1, chosen);
    if (!over_all) weights = weights.softmax(-1);
    if (moe.renormalise) weights = weights / weights.sum(-1, true);
    const at::Tensor dense = at::zeros_like(scores).scatter(1, chosen, weights);
    at::Tensor sum = h;
    for (int64_t expert = 0; expert < moe.experts; ++expert) {
      sum = sum + dense.narrow(1, expert, 1) * one_expert(expert, x);
    }
    if (moe.shared_width == 0) return sum;
    const at::Tensor value =
        at::silu(x.matmul(get(Module::kSharedGate).t())) * x.matmul(get(Module::kSharedUp).t());
    return sum + at::sigmoid(x.matmul(get(Module::kSharedSwitch).t())) *
                     value.matmul(get(Module::kSharedDown).t());
  }

 private:
  at::Tensor get(Module module, bool bias = false, int64_t expert = -1) const {
    return leaves_.at(names_.at({module, bias, expert}));
  }
  at::Tensor one_expert(int64_t expert, const at::Tensor& x) const {
    if (!arch_.moe.fused) {
      const at::Tensor value = at::silu(x.matmul(get(Module::kExpertGate, false, expert).t())) *
                               x.matmul(get(Module::kExpertUp, false, expert).t());
      return value.matmul(get(Module::kExpertDown, false, expert).t());
    }
    const at::Tensor both =
        x.matmul(get(Module::kExpertsGateUp)[expert]) + get(Module::kExpertsGateUp, true)[expert];
    const at::Tensor gate = both.slice(1, 0, both.size(1), 2).clamp_max(arch_.moe.clamp);
    const at::Tensor up =
        both.slice(1, 1, both.size(1), 2).clamp(-arch_.moe.clamp, arch_.moe.clamp);
    const at::Tensor value = gate * at::sigmoid(gate * arch_.moe.gate_gain) * (up + 1.0);
    return value.matmul(get(Module::kExpertsDown)[expert]) +
           get(Module::kExpertsDown, true)[expert];
  }

  ArchSpec arch_;
  Weights leaves_;
  std::map<std::tuple<Module, bool, int64_t>, std::string> names_;
};

double error(const at::Tensor& got, const at::Tensor& expected) {
  const double norm = expected.norm().item<double>();
  const double error = (got.to(at::kDouble) - expected).norm().item<double>();
  return norm == 0.0 ? error : error / norm;
}

// Returns the number of experts that have a token, so that the test can check its setup.
int64_t busy_experts(const ArchSpec& arch, const at::Tensor& h, const Weights& weights) {
  const std::vector<ModuleParameter> all =
      block_parameters(arch, {.body = "model."}, 0, BlockPart::kMlp);
  const auto router = std::ranges::find_if(all, [](const ModuleParameter& one) {
    return one.module == Module::kRouter && one.role == ParameterRole::kWeight;
  });
  const at::Tensor scale = (h.square().mean(-1, true) + arch.norm_eps).rsqrt();
  const at::Tensor scores = (h * scale).matmul(weights.at(router->spec.name).t());
  const at::Tensor counts =
      at::bincount(route(scores, arch.moe).experts.reshape({-1}), {}, arch.moe.experts);
  return (counts > 0).sum().item<int64_t>();
}

void compare_with_plain(const ArchSpec& arch, const Weights& weights, const at::Tensor& h) {
  const ModelSpec spec = make_model_spec(arch, {});
  const DecoderModel model(arch, spec, {.halves = {0}});
  const UnitId unit(2);
  ASSERT_EQ(model.spec().unit(unit).name, "block.0.experts");
  const PlainRunner runner(model, weights, at::kFloat);
  const Carry out = model.unit(unit).forward(runner.parameters(unit), {h}, {});
  std::map<std::string, at::Tensor> gradients;
  NamedSink sink(model.spec(), unit, gradients);
  at::manual_seed(3);
  const at::Tensor grad = at::randn(h.sizes());
  const at::NoGradGuard no_grad;
  const Carry grad_in = model.unit(unit).backward(runner.parameters(unit), {h}, {}, {grad}, sink);

  const at::AutoGradMode grad_mode(true);
  const PlainExperts plain(arch, weights);
  const at::Tensor input = h.to(at::kDouble).requires_grad_(true);
  const at::Tensor expected = plain(input);
  expected.backward(grad.to(at::kDouble));
  EXPECT_LE(error(out.at(0), expected.detach()), 2e-6);
  EXPECT_LE(error(grad_in.at(0), input.grad()), 1e-5);
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor& exact = plain.leaves().at(name).grad();
    EXPECT_LE(error(gradient, exact.defined() ? exact : at::zeros_like(plain.leaves().at(name))),
              2e-5)
        << name;
  }
}

class Experts : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    at::manual_seed(11);
  }
};

// Router and experts agree with the plain computation.
TEST_P(Experts, AgreeWithAPlainComputation) {
  const ArchSpec arch = preset(GetParam());
  const Weights weights = random_weights(make_model_spec(arch, {}));
  compare_with_plain(arch, weights, at::randn({40, arch.hidden}));
}

// A single token works, and the experts without a token are idle.
TEST_P(Experts, TakeOneToken) {
  const ArchSpec arch = preset(GetParam());
  const Weights weights = random_weights(make_model_spec(arch, {}));
  const at::Tensor h = at::randn({1, arch.hidden});
  EXPECT_EQ(busy_experts(arch, h, weights), arch.moe.top_k) << "the others are idle";
  compare_with_plain(arch, weights, h);
}

// One expert may take all tokens while the others are idle.
TEST_P(Experts, TakeAllTokensInOneAndLeaveOthersIdle) {
  ArchSpec arch = preset(GetParam());
  arch.moe.top_k = 1;
  arch.moe.renormalise = false;  // renormalised to 1, the router's gradient would be noise
  const Weights weights = random_weights(make_model_spec(arch, {}));
  // The tokens differ little.
  const at::Tensor h = at::randn({1, arch.hidden}) + 0.01 * at::randn({30, arch.hidden});
  EXPECT_EQ(busy_experts(arch, h, weights), 1);
  compare_with_plain(arch, weights, h);
}

// Every expert may take every token.
TEST_P(Experts, TakeEveryTokenInEach) {
  ArchSpec arch = preset(GetParam());
  arch.moe.top_k = arch.moe.experts;
  const Weights weights = random_weights(make_model_spec(arch, {}));
  const at::Tensor h = at::randn({25, arch.hidden});
  EXPECT_EQ(busy_experts(arch, h, weights), arch.moe.experts);
  compare_with_plain(arch, weights, h);
}

// Goal: the bits do not depend on how a layer's experts are cut into units.
TEST_P(Experts, GroupsOfAnySizeGiveTheSameBits) {
  const ArchSpec arch = preset(GetParam());
  const ModelSpec spec = make_model_spec(arch, {});
  const Weights weights = random_weights(spec);
  const std::vector<std::vector<int64_t>> rows = {{5, 9, 1, 1, 40, 2, 90}, {7, 7, 7}};
  const std::vector<MicroBatch> batches = {PlainRunner::make_batch(rows, rows)};
  const DecoderModel whole(arch, spec);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PlainRunner expected(whole, weights, dtype);
    const auto once = expected.gradients(batches, 0.1, Recompute::kUnit);
    for (int64_t size = 1; size <= arch.moe.experts; ++size) {
      const DecoderModel cut(arch, spec, {.halves = {0}, .grouped = {0}, .experts = size});
      EXPECT_EQ(cut.spec().whole_parameters(), spec.whole_parameters()) << size;
      const PlainRunner runner(cut, weights, dtype);
      EXPECT_TRUE(at::equal(runner.logits(batches[0]), expected.logits(batches[0]))) << size;
      const auto twice = runner.gradients(batches, 0.1, Recompute::kUnit);
      EXPECT_EQ(twice.loss_sum, once.loss_sum);
      for (const auto& [name, gradient] : once.gradients) {
        EXPECT_TRUE(at::equal(gradient, twice.gradients.at(name))) << name << " by " << size;
      }
    }
  }
}

// Goal: freezing the router, or everything but experts, leaves the other gradients unchanged.
TEST_P(Experts, FreezingLeavesTheOtherGradients) {
  const ArchSpec arch = preset(GetParam());
  const ModelSpec spec = make_model_spec(arch, {});
  const Weights weights = random_weights(spec);
  const std::vector<std::vector<int64_t>> rows = {{5, 9, 1, 1, 40, 2, 90}, {7, 7, 7}};
  const std::vector<MicroBatch> batches = {PlainRunner::make_batch(rows, rows)};
  const DecoderModel whole(arch, spec);
  const auto all =
      PlainRunner(whole, weights, at::kFloat).gradients(batches, 0.1, Recompute::kUnit).gradients;
  const std::vector<std::string> router = {arch.family == "mixtral"   ? "*block_sparse_moe.gate.*"
                                           : arch.family == "gpt_oss" ? "*mlp.router.*"
                                                                      : "*mlp.gate.*"};
  const std::vector<std::string> others = {"model.embed_tokens*", "*self_attn*", "*norm*",
                                           "lm_head*", router.front()};
  for (const std::vector<std::string>& globs : {router, others}) {
    ModelSpec frozen = spec;
    freeze_parameters(frozen, globs, "train.freeze");
    const DecoderModel model(arch, frozen);
    const auto some =
        PlainRunner(model, weights, at::kFloat).gradients(batches, 0.1, Recompute::kUnit).gradients;
    EXPECT_FALSE(some.empty());
    EXPECT_LT(some.size(), all.size());
    for (const auto& [name, gradient] : some) {
      EXPECT_TRUE(at::equal(gradient, all.at(name))) << name;
    }
  }
}

// Goal: the worst input of a group sends all tokens to the largest possible number of its experts.
TEST_P(Experts, TheWorstInputOfAGroupIsItsOwn) {
  const ArchSpec arch = preset(GetParam());
  const int64_t top_k = arch.moe.top_k;
  const ExpertsUnit group(arch, 0, {.first = 6, .count = 2, .all = 8});
  const UnitTraits traits = group.traits({});
  ASSERT_EQ(std::ssize(traits.worst_input), top_k);
  for (int64_t choice = 0; choice < top_k; ++choice) {
    const UnitTraits::Column& column = traits.worst_input[static_cast<size_t>(choice)];
    EXPECT_EQ(column.tensor, 1u);
    EXPECT_EQ(column.column, top_k + choice);
    EXPECT_EQ(column.value, static_cast<double>(6 + choice));
  }
  EXPECT_EQ(traits.idle_elements, 0);
  const ExpertsUnit all(arch, 0, {.first = 0, .count = 8, .all = 8});
  EXPECT_EQ(all.traits({}).idle_elements, 6 * 3 * arch.hidden * arch.moe.width);
}

INSTANTIATE_TEST_SUITE_P(Presets, Experts, testing::ValuesIn(kPresets), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Goal: among equal scores the lowest experts are chosen in order.
TEST(Routing, TiesGoToTheLowest) {
  for (const bool over_all : {true, false}) {
    const MoeSpec moe{.experts = 128,
                      .top_k = 8,
                      .scores = over_all ? RouterScores::kSoftmax : RouterScores::kSoftmaxOfChosen,
                      .renormalise = over_all};
    const Routing routing = route(at::zeros({50, 128}), moe);
    EXPECT_TRUE(at::equal(routing.experts, at::arange(8).expand({50, 8})));
    EXPECT_TRUE(at::equal(routing.weights, at::full({50, 8}, 0.125F)));
    at::Tensor scores = at::zeros({3, 128});
    scores.index_put_({at::tensor({1}), at::tensor({100})}, 1.0F);
    const at::Tensor second = route(scores, moe).experts[1];
    EXPECT_EQ(second[0].item<int64_t>(), 100);
    EXPECT_TRUE(at::equal(second.narrow(0, 1, 7), at::arange(7)));
  }
}

// Goal: a correction changes which experts are chosen and no weight; weights are scaled last.
TEST(Routing, ACorrectionChoosesAndDoesNotWeigh) {
  MoeSpec moe{.experts = 4,
              .top_k = 2,
              .scores = RouterScores::kSigmoid,
              .correction = true,
              .renormalise = true,
              .weight_scale = 1.5};
  const Routing routing = route(at::zeros({1, 4}), moe, at::tensor({0.0F, 0.0F, 1.0F, 0.5F}));
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({2, 3}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::allclose(routing.weights, at::full({1, 2}, 0.75F)));
  moe.renormalise = false;
  EXPECT_TRUE(at::allclose(route(at::zeros({1, 4}), moe).weights, at::full({1, 2}, 0.75F)));
}

// Goal: the group with the best pair is chosen, though the best expert is in the other, and of
// equal groups the lowest.
TEST(Routing, TheGroupWithTheBestPairIsChosen) {
  const MoeSpec moe{
      .experts = 4, .top_k = 2, .scores = RouterScores::kSigmoid, .groups = 2, .kept_groups = 1};
  const at::Tensor scores = at::tensor({3.0F, -3.0F, 1.0F, 1.0F, 0.0F, 0.0F, 0.0F, 0.0F});
  EXPECT_TRUE(at::equal(route(scores.view({2, 4}), moe).experts,
                        at::tensor({2, 3, 0, 1}, at::kLong).view({2, 2})));
}

// Goal: every choice is dispatched once, ordered by expert and then by token.
TEST(Routing, DispatchKeepsTheOrderOfTokens) {
  const at::Tensor experts = at::tensor({2, 0, 2, 1, 0, 2}, at::kLong).view({3, 2});
  const Dispatch tokens = dispatch(experts, 4);
  EXPECT_EQ(tokens.starts, (std::vector<int64_t>{0, 2, 3, 6, 6}));
  EXPECT_TRUE(at::equal(tokens.pairs, at::tensor({1, 4, 3, 0, 2, 5}, at::kLong)));
}

}  // namespace
}  // namespace longshore
