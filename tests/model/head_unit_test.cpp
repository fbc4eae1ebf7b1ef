// The head's loss and gradients over chunks, and with several threads that share the work.
#include "model/decoder/head_unit.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "model/families/families.h"
#include "model/losses/losses.h"
#include "model/parameters/model_spec.h"
#include "model/units/module_index.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

const int kStrictMkl = setenv("MKL_CBWR", "AVX2,STRICT", 1);

std::shared_ptr<const ColumnValues> weights_column(std::vector<float> weights) {
  ColumnValues columns;
  columns[kWeightColumn] = std::move(weights);
  return std::make_shared<const ColumnValues>(std::move(columns));
}

const std::string kConfig =
    R"({"model_type": "llama", "vocab_size": 300, "hidden_size": 256, "intermediate_size": 704,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})";

class Head : public testing::Test {
 protected:
  explicit Head(double logit_cap = 0.0, const AdapterSpec& adapter = {})
      : arch_(with(read_arch_spec(Json::parse(kConfig), "config.json"), logit_cap, adapter)),
        model_(arch_, make_model_spec(arch_, {})) {
    at::set_num_threads(1);
    at::manual_seed(3);
    for (const UnitSpec& unit : model_.spec().units) {
      for (const ParamSpec& parameter : unit.parameters) {
        weights_[parameter.name] =
            at::randn(parameter.shape) * (parameter.shape.size() > 1 ? 0.05 : 0.2) + 0.1;
      }
    }
    runner_ = std::make_unique<PlainRunner>(model_, weights_, at::kFloat);
  }

  static ArchSpec with(ArchSpec arch, double cap, const AdapterSpec& adapter) {
    arch.logit_cap = cap;
    arch.adapter = adapter;
    return arch;
  }

  // Compares 2500 positions with all logits at once in fp64; `weights` are empty or of positions.
  void compare_with_all_at_once(const std::vector<float>& weights = {});
  // Compares a loss over pairs of documents with all logits at once in fp64.
  void compare_pairs_with_all_at_once();

  MicroBatch batch(int64_t positions, int64_t trained_every) const {
    std::vector<int64_t> tokens, targets;
    for (int64_t i = 0; i < positions; ++i) {
      tokens.push_back((i * 7919) % arch_.vocabulary);
      targets.push_back(i % trained_every == 0 ? (i * 31) % arch_.vocabulary : -100);
    }
    return PlainRunner::make_batch({tokens}, {targets});
  }

  ArchSpec arch_;
  DecoderModel model_;
  std::map<std::string, at::Tensor> weights_;
  std::unique_ptr<PlainRunner> runner_;
};

void Head::compare_with_all_at_once(const std::vector<float>& weights) {
  MicroBatch many = batch(2500, 1);
  many.columns = weights_column(weights);
  at::Tensor x = at::randn({2500, arch_.hidden});
  std::map<std::string, at::Tensor> sums;
  const auto last = UnitId(static_cast<int32_t>(model_.spec().units.size()) - 1);
  NamedSink sink(model_.spec(), last, sums);
  const auto result =
      model_.loss_unit().loss_and_gradients(runner_->parameters(last), {x}, many, 0.5, true, sink);
  x = x.to(at::kDouble).requires_grad_(true);
  const at::Tensor norm = weights_.at("model.norm.weight").to(at::kDouble).requires_grad_(true);
  const at::Tensor head = weights_.at("lm_head.weight").to(at::kDouble).requires_grad_(true);
  const at::Tensor normed = x * (x.square().mean(-1, true) + 1e-6).rsqrt() * norm;
  at::Tensor logits = normed.mm(head.t());
  if (arch_.logit_cap != 0.0) logits = (logits / arch_.logit_cap).tanh() * arch_.logit_cap;
  const at::Tensor chosen = at::log_softmax(logits, 1).gather(1, many.targets.unsqueeze(1));
  const at::Tensor factors =
      weights.empty() ? at::ones({2500}, at::kDouble) : at::tensor(weights).to(at::kDouble);
  const at::Tensor loss = chosen.view({-1}).mul(factors).sum().neg();
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-6 * loss.item<double>());
  EXPECT_EQ(result.trained, 2500);
  (loss * 0.5).backward();
  const auto error = [](const at::Tensor& got, const at::Tensor& expected) {
    return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  };
  EXPECT_LE(error(result.grad_in.at(0), x.grad()), 1e-5);
  EXPECT_LE(error(sums.at("model.norm.weight"), norm.grad()), 1e-5);
  EXPECT_LE(error(sums.at("lm_head.weight"), head.grad()), 1e-5);
  const at::Tensor some = at::arange(0, 2500, 100);
  EXPECT_LE(error(model_.loss_unit().logits(runner_->parameters(last), {x.detach().to(at::kFloat)},
                                            many, some),
                  logits.detach().index_select(0, some)),
            1e-6);
  EXPECT_EQ(
      model_.loss_unit().loss(runner_->parameters(last), {x.detach().to(at::kFloat)}, many).loss,
      result.loss);
}

void Head::compare_pairs_with_all_at_once() {
  MicroBatch many = batch(2500, 1);
  many.document_starts = {0, 300, 1100, 1900, 2500};
  // The prompts are not trained.
  for (size_t d = 0; d < 4; ++d) {
    many.targets.narrow(0, many.document_starts[d], 7 * static_cast<int64_t>(d + 1)).fill_(-100);
  }
  many.loss = make_loss({.loss = LossKind::kDpo, .beta = 0.02});
  ColumnValues columns;
  columns.get<kReferenceLogpColumn>() = {-2000.0, -5300.0, -5300.0, -3900.0};
  many.columns = std::make_shared<const ColumnValues>(std::move(columns));
  at::Tensor x = at::randn({2500, arch_.hidden});
  std::map<std::string, at::Tensor> sums;
  const auto last = UnitId(static_cast<int32_t>(model_.spec().units.size()) - 1);
  NamedSink sink(model_.spec(), last, sums);
  const auto result =
      model_.loss_unit().loss_and_gradients(runner_->parameters(last), {x}, many, 0.5, true, sink);
  x = x.to(at::kDouble).requires_grad_(true);
  const at::Tensor norm = weights_.at("model.norm.weight").to(at::kDouble).requires_grad_(true);
  const at::Tensor head = weights_.at("lm_head.weight").to(at::kDouble).requires_grad_(true);
  at::Tensor logits = (x * (x.square().mean(-1, true) + 1e-6).rsqrt() * norm).mm(head.t());
  if (arch_.logit_cap != 0.0) logits = (logits / arch_.logit_cap).tanh() * arch_.logit_cap;
  const at::Tensor trained = many.targets != -100;
  const at::Tensor logps =
      at::log_softmax(logits, 1).gather(1, many.targets.clamp_min(0).unsqueeze(1)).view({-1}) *
      trained.to(at::kDouble);
  std::vector<at::Tensor> ratios;
  for (size_t d = 0; d < 4; ++d) {
    const int64_t begin = many.document_starts[d], end = many.document_starts[d + 1];
    const at::Tensor logp = logps.narrow(0, begin, end - begin).sum();
    EXPECT_NEAR(result.document_logps.at(d), logp.item<double>(), 1e-2) << d;
    ratios.push_back(logp - many.column<kReferenceLogpColumn>()[d]);
  }
  const at::Tensor loss = -at::log_sigmoid((ratios[0] - ratios[1]) * 0.02) -
                          at::log_sigmoid((ratios[2] - ratios[3]) * 0.02);
  (loss * 0.5).backward();
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-4 * loss.item<double>());
  EXPECT_EQ(result.trained, 2500 - 7 - 14 - 21 - 28);
  EXPECT_EQ(result.named<PreferenceSums>().pairs, 2);
  const auto error = [](const at::Tensor& got, const at::Tensor& expected) {
    return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  };
  EXPECT_LE(error(result.grad_in.at(0), x.grad()), 1e-4);
  EXPECT_LE(error(sums.at("model.norm.weight"), norm.grad()), 1e-4);
  EXPECT_LE(error(sums.at("lm_head.weight"), head.grad()), 1e-4);
  const auto alone =
      model_.loss_unit().loss(runner_->parameters(last), {x.detach().to(at::kFloat)}, many);
  EXPECT_EQ(alone.loss, result.loss);
  EXPECT_EQ(alone.document_logps, result.document_logps);
}

// Documents that span several chunks have the gradients of their pairs' loss.
TEST_F(Head, PairsOfDocumentsAgreeWithAllLogitsAtOnce) {
  compare_pairs_with_all_at_once();
}

// Chunks of 1024 positions (a vocabulary of 300) agree with all logits at once.
TEST_F(Head, ManyChunksAgreeWithAllLogitsAtOnce) {
  compare_with_all_at_once();
}

std::vector<float> some_weights(int64_t positions) {
  std::vector<float> weights;
  for (int64_t i = 0; i < positions; ++i) weights.push_back(0.375f * static_cast<float>(i % 7));
  return weights;
}

// Each position's loss and gradient are multiplied by its weight, in all chunks.
TEST_F(Head, WeightsOfPositionsAgreeWithAllLogitsAtOnce) {
  compare_with_all_at_once(some_weights(2500));
}

// Weights of 1 change no bit, of a whole head and of one in pieces.
TEST_F(Head, WeightsOfOneChangeNoBit) {
  const MicroBatch plain = batch(64, 3);
  MicroBatch ones = plain;
  ones.columns = weights_column(std::vector<float>(22, 1.0f));
  const DecoderModel pieces(arch_, make_model_spec(arch_, {}),
                            {.halves = {}, .embedding_rows = 0, .head_rows = 128});
  for (const DecoderModel* model : {&std::as_const(model_), &pieces}) {
    const PlainRunner runner(*model, weights_, at::kFloat);
    const auto one = runner.gradients({plain}, 0.1, PlainRunner::Recompute::kUnit);
    const auto two = runner.gradients({ones}, 0.1, PlainRunner::Recompute::kUnit);
    EXPECT_EQ(one.trained, 22);
    EXPECT_EQ(one.loss_sum, two.loss_sum);
    EXPECT_EQ(runner.loss(ones), two.loss_sum);
    for (const auto& [name, gradient] : one.gradients) {
      EXPECT_TRUE(at::equal(gradient, two.gradients.at(name))) << name;
    }
  }
}

// The loss of a policy and its gradients agree with all logits at once in fp64, over chunks, whole
// and in pieces. Half of the positions are outside the bounds of the clip.
TEST_F(Head, APolicysLossAgreesWithAllLogitsAtOnce) {
  MicroBatch many = batch(2500, 1);
  many.loss = make_loss({.loss = LossKind::kPolicy, .policy = {.clip_low = 0.2, .clip_high = 0.3}});
  const at::Tensor x = at::randn({2500, arch_.hidden});
  const at::Tensor exact = x.to(at::kDouble).requires_grad_(true);
  const at::Tensor norm = weights_.at("model.norm.weight").to(at::kDouble).requires_grad_(true);
  const at::Tensor head = weights_.at("lm_head.weight").to(at::kDouble).requires_grad_(true);
  const at::Tensor logits =
      (exact * (exact.square().mean(-1, true) + 1e-6).rsqrt() * norm).mm(head.t());
  const at::Tensor logps =
      at::log_softmax(logits, 1).gather(1, many.targets.unsqueeze(1)).view({-1});
  // Ratios of 0.65, 0.95, 1.2 and 1.6 in turn, with advantages of both signs.
  const at::Tensor ratios = at::tensor({0.65, 0.95, 1.2, 1.6}, at::kDouble).repeat({625});
  const at::Tensor old = (logps.detach() - ratios.log()).to(at::kFloat).contiguous();
  const at::Tensor advantages = (at::arange(2500, at::kFloat) % 7 - 3) * 0.5;
  const auto values = [](const at::Tensor& tensor) {
    const auto* const data = tensor.const_data_ptr<float>();
    return std::vector<float>(data, data + tensor.numel());
  };
  ColumnValues columns;
  columns[kOldLogpColumn] = values(old);
  columns[kAdvantageColumn] = values(advantages);
  many.columns = std::make_shared<const ColumnValues>(std::move(columns));
  const at::Tensor ratio = (logps - old.to(at::kDouble)).exp();
  const at::Tensor wide = advantages.to(at::kDouble);
  const at::Tensor loss = -at::min(ratio * wide, ratio.clamp(0.8, 1.3) * wide).sum();
  (loss * 0.5).backward();
  std::map<std::string, at::Tensor> sums;
  const auto last = UnitId(static_cast<int32_t>(model_.spec().units.size()) - 1);
  NamedSink sink(model_.spec(), last, sums);
  const auto result =
      model_.loss_unit().loss_and_gradients(runner_->parameters(last), {x}, many, 0.5, true, sink);
  const double size = (ratio * wide).abs().sum().item<double>();
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5 * size);
  EXPECT_EQ(result.named<PolicySums>().tokens, 2500);
  EXPECT_NEAR(result.named<PolicySums>().ratios, ratio.sum().item<double>(), 1e-5 * 2500);
  const auto held = at::logical_or(at::logical_and(ratio < 0.8, wide < 0),
                                   at::logical_and(ratio > 1.3, wide > 0));
  EXPECT_EQ(result.named<PolicySums>().clipped, held.sum().item<int64_t>());
  const auto error = [](const at::Tensor& got, const at::Tensor& expected) {
    return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  };
  EXPECT_LE(error(result.grad_in.at(0), exact.grad()), 1e-4);
  EXPECT_LE(error(sums.at("model.norm.weight"), norm.grad()), 1e-4);
  EXPECT_LE(error(sums.at("lm_head.weight"), head.grad()), 1e-4);
}

// A head in pieces weights positions as the whole one does.
TEST_F(Head, WeightsOfPositionsAgreeInPieces) {
  MicroBatch weighted = batch(64, 3);
  weighted.columns = weights_column(some_weights(22));
  const DecoderModel pieces(arch_, make_model_spec(arch_, {}),
                            {.halves = {}, .embedding_rows = 0, .head_rows = 128});
  const PlainRunner cut(pieces, weights_, at::kFloat);
  const auto expected = runner_->gradients({weighted}, 0.1, PlainRunner::Recompute::kUnit);
  const auto got = cut.gradients({weighted}, 0.1, PlainRunner::Recompute::kUnit);
  EXPECT_NEAR(got.loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum);
  double largest = 0.0;
  for (const auto& [name, gradient] : expected.gradients) {
    largest = std::max(largest, gradient.norm().item<double>());
  }
  // Gradients below the head come from sums that the order rounds to 1e-7 of the largest.
  for (const auto& [name, gradient] : expected.gradients) {
    const double difference = (got.gradients.at(name) - gradient).norm().item<double>();
    EXPECT_LE(difference, 1e-5 * gradient.norm().item<double>() + 1e-6 * largest) << name;
  }
}

class CappedHead : public Head {
 protected:
  CappedHead() : Head(1.5) {}
};

// Capped logits in chunks agree with all logits at once; logits have a deviation of about 2.
TEST_F(CappedHead, ManyChunksAgreeWithAllLogitsAtOnce) {
  compare_with_all_at_once();
}

// The cap's derivative meets the weights of positions.
TEST_F(CappedHead, WeightsOfPositionsAgreeWithAllLogitsAtOnce) {
  compare_with_all_at_once(some_weights(2500));
}

// The cap's derivative meets the factors of pairs.
TEST_F(CappedHead, PairsOfDocumentsAgreeWithAllLogitsAtOnce) {
  compare_pairs_with_all_at_once();
}

// A head with DoRA, whose A reads an x of which half is dropped where a batch has keys.
class DoraHead : public Head {
 protected:
  DoraHead()
      : Head(1.5, {.magnitudes = true,
                   .dropout = 0.5,
                   .targets = {{{kNoLayer, Module::kHead}, {.rank = 3, .scaling = 1.5}}}}) {}

  // Compares 2500 positions with the formula of PEFT in fp64. The norms have no gradient.
  void compare_with_the_formula(const at::Tensor& keys);
};

void DoraHead::compare_with_the_formula(const at::Tensor& keys) {
  MicroBatch many = batch(2500, 1);
  many.dropout_keys = keys;
  const at::Tensor x = at::randn({2500, arch_.hidden});
  std::map<std::string, at::Tensor> sums;
  const auto last = UnitId(static_cast<int32_t>(model_.spec().units.size()) - 1);
  NamedSink sink(model_.spec(), last, sums);
  const auto result =
      model_.loss_unit().loss_and_gradients(runner_->parameters(last), {x}, many, 0.5, true, sink);
  std::map<std::string, at::Tensor> exact;
  for (const std::string name : {"model.norm.weight", "lm_head.weight", "lm_head.lora_A.weight",
                                 "lm_head.lora_B.weight", "lm_head.lora_magnitude_vector"}) {
    exact[name] = weights_.at(name).to(at::kDouble).requires_grad_(true);
  }
  const at::Tensor head = exact.at("lm_head.weight"), a = exact.at("lm_head.lora_A.weight");
  const at::Tensor b = exact.at("lm_head.lora_B.weight");
  const at::Tensor in = x.to(at::kDouble).requires_grad_(true);
  const at::Tensor normed =
      in * (in.square().mean(-1, true) + 1e-6).rsqrt() * exact.at("model.norm.weight");
  const ModuleIndex index(head_parameters(arch_, {}, /*tied=*/false), arch_);
  const InputDropout dropout =
      index.linear(runner_->parameters(last), Module::kHead, many).lora.dropout;
  const at::Tensor ones = at::ones({2500, arch_.hidden});
  EXPECT_EQ(dropout.drops(), keys.defined());
  const at::Tensor kept = normed * (dropout.drops() ? dropout.applied(ones) : ones);
  const at::Tensor norms = (head + 1.5 * b.mm(a)).square().sum(1).sqrt().detach();
  const at::Tensor factors = exact.at("lm_head.lora_magnitude_vector") / norms;
  const at::Tensor product = normed.mm(head.t()) + (factors - 1.0) * kept.mm(head.t()) +
                             factors * 1.5 * kept.mm(a.t()).mm(b.t());
  const at::Tensor logits = (product / arch_.logit_cap).tanh() * arch_.logit_cap;
  const at::Tensor loss =
      at::log_softmax(logits, 1).gather(1, many.targets.unsqueeze(1)).sum().neg();
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-6 * loss.item<double>());
  (loss * 0.5).backward();
  const auto error = [](const at::Tensor& got, const at::Tensor& expected) {
    return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  };
  EXPECT_LE(error(result.grad_in.at(0), in.grad()), 1e-5);
  for (const auto& [name, value] : exact)
    EXPECT_LE(error(sums.at(name), value.grad()), 1e-5) << name;
  const at::Tensor some = at::arange(0, 2500, 100);
  EXPECT_LE(error(model_.loss_unit().logits(runner_->parameters(last), {x}, many, some),
                  logits.detach().index_select(0, some)),
            1e-6);
}

// Chunks of positions share the norms and add to one gradient of the magnitudes.
TEST_F(DoraHead, FollowsTheFormulaInChunks) {
  compare_with_the_formula({});
}

// With dropout the product with the rest of x is not scaled.
TEST_F(DoraHead, FollowsTheFormulaWithDropout) {
  compare_with_the_formula(at::arange(2500) * 977);
}

// A batch without trained positions has no loss and zero gradients.
TEST_F(Head, ABatchWithoutTrainedPositionsHasNoLossAndZeroGradients) {
  MicroBatch none = batch(20, 1);
  none.targets.fill_(-100);
  const auto outcome = runner_->gradients({none}, 1.0, PlainRunner::Recompute::kUnit);
  EXPECT_EQ(outcome.loss_sum, 0.0);
  EXPECT_EQ(outcome.trained, 0);
  for (const auto& [name, gradient] : outcome.gradients) {
    EXPECT_EQ(gradient.abs().max().item<float>(), 0.0f) << name;
  }
}

// Positions without a loss change nothing and cost no computation.
TEST_F(Head, UntrainedPositionsCostNothingAndChangeNothing) {
  const MicroBatch sparse = batch(64, 9);
  const auto outcome = runner_->gradients({sparse}, 1.0, PlainRunner::Recompute::kUnit);
  EXPECT_EQ(outcome.trained, 8);
  EXPECT_EQ(outcome.loss_sum, runner_->loss(sparse));
}

// One and two threads give the same bits in a model large enough that every operation shares its
// work (MKL in strict mode, sums as matrix products).
TEST_F(Head, AWholeModelGivesTheSameBitsWithOneAndTwoThreads) {
  const std::vector<MicroBatch> batches{batch(640, 2)};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PlainRunner runner(model_, weights_, dtype);
    const auto one = runner.gradients(batches, 0.1, PlainRunner::Recompute::kUnit);
    at::set_num_threads(2);
    const auto two = runner.gradients(batches, 0.1, PlainRunner::Recompute::kUnit);
    at::set_num_threads(1);
    EXPECT_EQ(one.loss_sum, two.loss_sum) << dtype;
    for (const auto& [name, gradient] : one.gradients) {
      EXPECT_TRUE(at::equal(gradient, two.gradients.at(name))) << name << " " << dtype;
    }
  }
}

}  // namespace
}  // namespace longshore
