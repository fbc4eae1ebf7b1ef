// A table, two hidden layers and a loss as torch modules, for tests of the runner
// against plain autograd. Test code.
#pragma once

#include <torch/torch.h>

#include "model/models/module_model.h"

namespace longshore {

inline constexpr int64_t kSmallVocabulary = 11;
inline constexpr int64_t kSmallHidden = 8;

// SmallModules: the modules and their computation, with and without the engine.
struct SmallModules {
  torch::nn::Embedding table{torch::nn::EmbeddingOptions(kSmallVocabulary, kSmallHidden)};
  torch::nn::Linear first{kSmallHidden, kSmallHidden};
  torch::nn::Linear second{kSmallHidden, kSmallHidden};
  torch::nn::Linear scores{kSmallHidden, kSmallVocabulary};

  explicit SmallModules(uint64_t seed) {
    torch::manual_seed(seed);
    for (torch::nn::Module* module : modules()) {
      for (at::Tensor& parameter : module->parameters()) {
        const at::NoGradGuard no_grad;
        parameter.normal_(0.0, 0.5);
      }
    }
  }
  std::vector<torch::nn::Module*> modules() {
    return {table.get(), first.get(), second.get(), scores.get()};
  }
  at::Tensor loss_sum(const MicroBatch& batch) {
    at::Tensor hidden = table(batch.tokens);
    hidden = torch::tanh(first(hidden));
    hidden = hidden + torch::tanh(second(hidden));
    return torch::nn::functional::cross_entropy(
        scores(hidden), batch.targets,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-100));
  }
};

inline std::unique_ptr<ModuleModel> make_small_model(SmallModules modules) {
  auto model = std::make_unique<ModuleModel>();
  const std::vector<CarryTensorSpec> carry = {{kSmallHidden}};
  model->add_unit(
      "table", modules.table.ptr(),
      [table = modules.table](const Carry&, const MicroBatch& batch) mutable {
        return Carry{table(batch.tokens)};
      },
      carry);
  model->add_unit(
      "first", modules.first.ptr(),
      [first = modules.first](const Carry& in, const MicroBatch&) mutable {
        return Carry{torch::tanh(first(in[0]))};
      },
      carry);
  model->add_unit(
      "second", modules.second.ptr(),
      [second = modules.second](const Carry& in, const MicroBatch&) mutable {
        return Carry{in[0] + torch::tanh(second(in[0]))};
      },
      carry);
  model->add_loss("scores", modules.scores.ptr(),
                  [scores = modules.scores](const Carry& in, const MicroBatch&) mutable {
                    return scores(in[0]);
                  });
  return model;
}

inline MicroBatch small_batch(int64_t positions, uint64_t seed) {
  torch::manual_seed(seed);
  MicroBatch batch;
  batch.tokens = torch::randint(kSmallVocabulary, {positions}, torch::kLong);
  batch.targets = torch::randint(kSmallVocabulary, {positions}, torch::kLong);
  batch.targets[0] = -100;
  batch.positions = torch::arange(positions);
  batch.document_starts = {0, positions};
  return batch;
}

}  // namespace longshore
