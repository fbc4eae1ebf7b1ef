// own_model: trains a custom torch::nn model on the engine, with parameters and optimizer state in
// host memory and one unit at a time on the device. It learns the sum of two digits, which are two
// tokens; the second one's target is the sum.
#include <torch/torch.h>

#include <cstdio>

#include "longshore/engine.h"
#include "longshore/module_model.h"
#include "longshore/plan.h"
#include "longshore/train_step.h"

namespace {

using longshore::Carry;
using longshore::MicroBatch;

constexpr int64_t kDigits = 10;
constexpr int64_t kSums = 2 * kDigits - 1;
constexpr int64_t kHidden = 64;
constexpr int64_t kPairs = 64;
constexpr int64_t kSteps = 200;

// The three units are a table of digits, a hidden layer over pairs, and the scores with the loss.
std::unique_ptr<longshore::ModuleModel> make_model() {
  torch::manual_seed(1);
  auto model = std::make_unique<longshore::ModuleModel>();
  torch::nn::Embedding table(kDigits, kHidden);
  model->add_unit(
      "table", table.ptr(),
      [table](const Carry&, const MicroBatch& batch) mutable { return Carry{table(batch.tokens)}; },
      {{kHidden}});
  torch::nn::Linear mix(2 * kHidden, kHidden);
  model->add_unit("mix", mix.ptr(),
                  [mix](const Carry& in, const MicroBatch&) mutable {
                    const at::Tensor pairs = in[0].view({-1, 2 * kHidden});
                    return Carry{torch::relu(mix(pairs)).repeat_interleave(2, 0)};
                  },
                  {{kHidden}});
  torch::nn::Linear scores(kHidden, kSums);
  model->add_loss("scores", scores.ptr(),
                  [scores](const Carry& in, const MicroBatch&) mutable { return scores(in[0]); });
  return model;
}

// Pairs of digits as one stream of positions; only the second of each pair has a target.
struct Pairs {
  std::vector<int64_t> tokens, positions, targets, document_starts{0};
  explicit Pairs(int64_t step) {
    for (int64_t i = 0; i < kPairs; ++i) {
      const int64_t a = (i * 7 + step * 3) % kDigits;
      const int64_t b = (i + step) / kDigits % kDigits;
      tokens.insert(tokens.end(), {a, b});
      positions.insert(positions.end(), {0, 1});
      targets.insert(targets.end(), {-100, a + b});
      document_starts.push_back(2 * (i + 1));
    }
  }
};

}  // namespace

int main() {
  // First of all: LibTorch looks for GPU kernels once. This example computes on the CPU; with the
  // kernels loaded the process can compute on a GPU as well.
  if (!longshore::cuda_devices().empty()) longshore::load_gpu_kernels();
  longshore::set_compute_threads(1);
  const auto model = make_model();
  longshore::PlanInputs inputs;
  inputs.model = &model->spec();
  inputs.state = {.format = longshore::StateFormat::kSplit,
                  .compute = longshore::DType::kF32,
                  .drain = longshore::DType::kF32};
  inputs.sequences_per_step = 1;
  inputs.max_tokens = 2 * kPairs;
  // Runs each unit once or twice to measure its LibTorch memory.
  inputs.costs = longshore::unit_costs(*model, longshore::DType::kF32, 1,
                                       {.positions = 2 * kPairs, .longest_document = 2 * kPairs});
  longshore::Engine engine(model.get(),
                           longshore::make_tier_plan(inputs, longshore::probe_machine()),
                           std::make_unique<longshore::AdamWRule>(longshore::AdamWOptions{}));
  engine.load([&model](const std::string& name, int64_t begin, std::span<float> out) {
    model->read_initial(name, begin, out);
  });
  model->forget_initial();

  double first = 0.0, last = 0.0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const Pairs pairs(step);
    const longshore::Batch batch(pairs.tokens, pairs.positions, pairs.targets,
                                 pairs.document_starts);
    const longshore::StepOutcome outcome =
        longshore::train_step(engine, {.batches = engine.batches().load({&batch, 1}),
                                       .loss_terms = kPairs,
                                       .lr = 1e-2,
                                       .max_grad_norm = 1.0});
    if (step == 1) first = outcome.loss;
    last = outcome.loss;
    if (step % 50 == 0) std::printf("step %3lld  loss %.4f\n", (long long)step, outcome.loss);
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < first / 10 ? 0 : 1;
}
