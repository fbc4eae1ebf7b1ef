// The loss of distillation and its gradients agree with all logits at once in fp64, over chunks,
// with a whole head and one in pieces.
#include "model/losses/distill_loss.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/families/families.h"
#include "model/parameters/model_spec.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

constexpr int64_t kPositions = 1300;  // more than a chunk
constexpr int64_t kTopK = 3;

const std::string kConfig =
    R"({"model_type": "llama", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2})";

class Distill : public testing::Test {
 protected:
  Distill() {
    at::set_num_threads(1);
    at::manual_seed(7);
    x_ = at::randn({kPositions, 64});
    norm_ = at::randn({64}) * 0.2 + 1.0;
    head_ = at::randn({300, 64}) * 0.3;
  }

  static ArchSpec arch_of(const DistillOptions& options, double cap) {
    ArchSpec arch = read_arch_spec(Json::parse(kConfig), "config.json");
    arch.logit_cap = cap;
    arch.distill = options;
    return arch;
  }

  // Positions of which each has 1 to 3 tokens of the teacher. The 5th of ten has the whole
  // probability in its tokens, the 7th has next to none.
  static MicroBatch batch() {
    std::vector<int64_t> tokens, targets;
    ColumnValues columns;
    columns.teacher_tokens = kTopK;
    std::vector<float>& ids = columns[kTeacherIdColumn];
    std::vector<float>& logps = columns[kTeacherLogpColumn];
    for (int64_t i = 0; i < kPositions; ++i) {
      tokens.push_back(i % 300);
      targets.push_back(i % 4 == 3 ? -100 : (i * 31) % 300);
      if (targets.back() == -100) continue;
      const int64_t used = i % 10 == 5 ? 2 : 1 + i % kTopK;
      const double mass = i % 10 == 5 ? 1.0 : i % 10 == 7 ? 1e-6 : 0.8;
      for (int64_t j = 0; j < kTopK; ++j) {
        ids.push_back(static_cast<float>((i * 17 + (j < used ? j : 0) * 101) % 300));
        logps.push_back(j < used ? static_cast<float>(std::log(mass / static_cast<double>(used)))
                                 : -std::numeric_limits<float>::infinity());
      }
      columns[kWeightColumn].push_back(static_cast<float>(1 + i % 3));
    }
    MicroBatch made = PlainRunner::make_batch({tokens}, {targets});
    made.columns = std::make_shared<const ColumnValues>(std::move(columns));
    return made;
  }

  // Returns the loss of fp64 logits, summed with the weights; `kl` becomes the sum of divergences.
  static at::Tensor exact_loss(const at::Tensor& logits, const MicroBatch& batch,
                               const DistillOptions& options, double& kl) {
    const at::Tensor trained = at::nonzero(batch.targets != -100).view({-1});
    const auto column = [&](ColumnId which) {
      return at::tensor(batch.column(which)).to(at::kDouble);
    };
    const at::Tensor ids = column(kTeacherIdColumn).view({-1, kTopK}).to(at::kLong);
    const at::Tensor p = column(kTeacherLogpColumn).view({-1, kTopK}).exp();
    const at::Tensor rest = (1.0 - p.sum(1)).clamp_min(0.0);
    const at::Tensor rows = logits.index_select(0, trained);
    const at::Tensor q = at::softmax(rows / options.temperature, 1);
    const at::Tensor others = at::ones_like(q).scatter(1, ids, at::zeros_like(ids).to(at::kDouble));
    const auto log_of = [](const at::Tensor& values) { return values.clamp_min(1e-300).log(); };
    const at::Tensor divergence = (p * (log_of(p) - log_of(q.gather(1, ids)))).sum(1) +
                                  rest * (log_of(rest) - log_of((q * others).sum(1)));
    kl = divergence.sum().item<double>();
    const at::Tensor targets = batch.targets.index_select(0, trained).unsqueeze(1);
    const at::Tensor nll = at::log_softmax(rows, 1).gather(1, targets).view({-1}).neg();
    return ((divergence * (1.0 - options.ce_weight) + nll * options.ce_weight) *
            column(kWeightColumn))
        .sum();
  }

  void compare(const DistillOptions& options, double cap) {
    SCOPED_TRACE(testing::Message()
                 << options.temperature << " " << options.ce_weight << " " << cap);
    const ArchSpec arch = arch_of(options, cap);
    const MicroBatch many = batch();
    const at::Tensor x = x_.to(at::kDouble).requires_grad_(true);
    const at::Tensor norm = norm_.to(at::kDouble).requires_grad_(true);
    const at::Tensor head = head_.to(at::kDouble).requires_grad_(true);
    at::Tensor logits = (x * (x.square().mean(-1, true) + 1e-6).rsqrt() * norm).mm(head.t());
    if (cap != 0.0) logits = (logits / cap).tanh() * cap;
    double kl = 0.0;
    const at::Tensor loss = exact_loss(logits, many, options, kl);
    (loss * 0.5).backward();
    for (const int64_t rows : {0, 128}) {
      const DecoderModel model(arch, make_model_spec(arch, {}),
                               {.halves = {}, .embedding_rows = 0, .head_rows = rows});
      std::map<std::string, at::Tensor> sums;
      const LossUnit::Result result = run(model, many, sums);
      EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5 * std::abs(loss.item<double>()));
      EXPECT_EQ(result.trained, kPositions * 3 / 4);
      EXPECT_EQ(result.named<DistillSums>().tokens, result.trained);
      EXPECT_NEAR(result.named<DistillSums>().kl, kl, 1e-5 * kl);
      EXPECT_LE(error(result.grad_in.at(0), x.grad()), 2e-5) << rows;
      EXPECT_LE(error(sums.at("model.norm.weight"), norm.grad()), 2e-5) << rows;
      EXPECT_LE(error(sums.at("lm_head.weight"), head.grad()), 2e-5) << rows;
    }
  }

  // Runs the units of the head alone, whose first has the input x.
  LossUnit::Result run(const DecoderModel& model, const MicroBatch& many,
                       std::map<std::string, at::Tensor>& sums) {
    const at::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> weights;
    for (const UnitSpec& unit : model.spec().units) {
      for (const ParamSpec& parameter : unit.parameters) {
        if (!weights.contains(parameter.name) && parameter.name != "lm_head.weight") {
          weights[parameter.name] = at::zeros(parameter.shape);
        }
      }
    }
    weights["model.norm.weight"] = norm_;
    weights["lm_head.weight"] = head_;
    const PlainRunner runner(model, weights, at::kFloat);
    const auto first = UnitId(2),
               last = UnitId(static_cast<int32_t>(model.spec().units.size()) - 1);
    std::vector<Carry> inputs = {{x_}};
    for (UnitId id = first; id.value < last.value; ++id.value) {
      inputs.push_back(model.unit(id).forward(runner.parameters(id), inputs.back(), many));
    }
    NamedSink sink(model.spec(), last, sums);
    LossUnit::Result result = model.loss_unit().loss_and_gradients(
        runner.parameters(last), inputs.back(), many, 0.5, true, sink);
    EXPECT_EQ(model.loss_unit().loss(runner.parameters(last), inputs.back(), many).loss,
              result.loss);
    for (UnitId id(last.value - 1); id.value >= first.value; --id.value) {
      NamedSink inner(model.spec(), id, sums);
      inputs.pop_back();
      result.grad_in = model.unit(id).backward(runner.parameters(id), inputs.back(), many,
                                               result.grad_in, inner);
    }
    return result;
  }

  static double error(const at::Tensor& got, const at::Tensor& expected) {
    return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  }

  at::Tensor x_, norm_, head_;
};

// Temperature, cross entropy and a cap meet in one gradient.
TEST_F(Distill, AgreesWithAllLogitsAtOnceWholeAndInPieces) {
  compare({.top_k = kTopK}, 0.0);
  compare({.top_k = kTopK, .temperature = 2.0}, 0.0);
  compare({.top_k = kTopK, .ce_weight = 0.4}, 0.0);
  compare({.top_k = kTopK, .temperature = 1.7, .ce_weight = 0.3}, 2.5);
}

// A student that is sure of the teacher's token, beyond what 1 - q can tell from 0 in fp32, has a
// finite loss and the right one; so has one that has nothing beside the teacher's tokens.
TEST_F(Distill, ALostRestKeepsItsDigits) {
  const DistillOptions options{.top_k = 1};
  const float logp = std::log(0.75f);
  ColumnValues columns;
  columns[kTeacherIdColumn] = {0.0f, 0.0f};
  columns[kTeacherLogpColumn] = {logp, logp};
  const TeacherChunk teacher(options, columns, 0, 2, at::kCPU);
  const at::Tensor logits = at::tensor({50.0f, 0.0f, 0.0f, 200.0f, 0.0f, 0.0f}).view({2, 3});
  DistillScores scores(&teacher, logits.clone(), 0, at::zeros({2}, at::kLong));
  const DistillState all = scores.after(DistillState::before(2, logits.options()));
  const at::Tensor losses = teacher.losses(all, teacher.divergences(all));
  const double entropy = 0.75 * std::log(0.75) + 0.25 * std::log(0.25);
  EXPECT_NEAR(losses[0].item<float>(), entropy + 0.25 * (50.0 - std::log(2.0)), 1e-4);
  EXPECT_NEAR(losses[1].item<float>(), entropy + 0.25 * (200.0 - std::log(2.0)), 1e-4);
  const at::Tensor grad = scores.by_logits(all, teacher.derivatives(all, at::ones({2, 1})));
  const at::Tensor expected = at::tensor({0.25f, -0.125f, -0.125f}).expand({2, 3});
  EXPECT_LE((grad - expected).abs().max().item<float>(), 1e-6f);
  const DistillScores only(&teacher, at::full({2, 1}, 3.0), 0, at::zeros({2}, at::kLong));
  const DistillState known = only.after(DistillState::before(2, logits.options()));
  EXPECT_TRUE(at::isfinite(teacher.divergences(known)).all().item<bool>());
}

}  // namespace
}  // namespace longshore
