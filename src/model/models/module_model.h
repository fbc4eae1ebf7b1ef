// ModuleModel: wraps torch::nn::Modules as units, so that a user's own model trains on the engine.
// A module's parameters point at the leased slot; its own memory is released when its unit is first
// measured for a plan. Build it, make an Engine of it, load the engine from `read_initial`. The
// user owns it and must keep it alive as long as the engine; its units run on the compute thread.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/units/unit.h"

namespace longshore {

class ModuleModel : public Model {
 public:
  // Maps carry to carry with the module's parameters; it must be differentiable.
  using Forward = std::function<Carry(const Carry& in, const MicroBatch& batch)>;
  // Maps carry to fp32 scores [T, classes]; the loss is their cross entropy with batch.targets.
  using Scores = std::function<at::Tensor(const Carry& in, const MicroBatch& batch)>;

  ModuleModel();
  ~ModuleModel() override;

  // Add units in forward order and the loss last.
  void add_unit(const std::string& name, std::shared_ptr<torch::nn::Module> module, Forward forward,
                std::vector<CarryTensorSpec> carry_out);
  void add_loss(const std::string& name, std::shared_ptr<torch::nn::Module> module, Scores scores);

  // Reads the value that a parameter had when its module was added.
  void read_initial(const std::string& parameter, int64_t begin, std::span<float> out) const;
  // Frees the initial values, which take a copy of the model.
  void forget_initial() { initial_.clear(); }

  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override;

 private:
  void add_spec(const std::string& name, const torch::nn::Module& module,
                std::vector<CarryTensorSpec> carry_out);

  ModelSpec spec_;
  std::map<std::string, at::Tensor> initial_;  // fp32, flat
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<LossUnit> loss_;
};

}  // namespace longshore
