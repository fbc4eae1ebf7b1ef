#include "model/models/module_model.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/errors.h"

namespace longshore {
namespace {

// Points the module's parameters at the views; they are the leaves, because the module reads them.
std::vector<at::Tensor> adopt(torch::nn::Module& module, const std::vector<at::Tensor>& views) {
  std::vector<at::Tensor> parameters = module.parameters();
  LONGSHORE_CHECK(parameters.size() == views.size()) << parameters.size();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(views[i]);
  return parameters;
}

class ModuleUnit : public Unit {
 public:
  ModuleUnit(std::shared_ptr<torch::nn::Module> module, ModuleModel::Forward forward)
      : module_(std::move(module)), forward_(std::move(forward)) {}
  std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& views) const override {
    return adopt(*module_, views);
  }
  Carry forward(UnitParameters, const Carry& in, const MicroBatch& batch) const override {
    return forward_(in, batch);
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  ModuleModel::Forward forward_;
};

class ModuleLoss : public LossUnit {
 public:
  ModuleLoss(std::shared_ptr<torch::nn::Module> module, ModuleModel::Scores scores)
      : module_(std::move(module)), scores_(std::move(scores)) {}
  std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& views) const override {
    return adopt(*module_, views);
  }
  Result loss(UnitParameters, const Carry& in, const MicroBatch& batch) const override {
    const at::NoGradGuard no_grad;
    return result_of(loss_sum(in, batch), batch);
  }
  Result loss_and_gradients(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            double scale, bool want_grad_in, GradientSink& sink) const override;
  at::Tensor logits(UnitParameters, const Carry& in, const MicroBatch& batch,
                    const at::Tensor& positions) const override {
    return scores_(in, batch).index_select(0, positions);
  }

 private:
  at::Tensor loss_sum(const Carry& in, const MicroBatch& batch) const {
    return at::cross_entropy_loss(scores_(in, batch), batch.targets, {}, at::Reduction::Sum, -100);
  }
  static Result result_of(const at::Tensor& loss, const MicroBatch& batch) {
    Result result;
    result.loss = loss.item<double>();
    const at::Tensor on_host = batch.targets.to(at::kCPU);
    const int64_t* targets = on_host.const_data_ptr<int64_t>();
    result.trained = std::count_if(targets, targets + batch.targets.numel(),
                                   [](int64_t target) { return target != -100; });
    return result;
  }

  std::shared_ptr<torch::nn::Module> module_;
  ModuleModel::Scores scores_;
};

LossUnit::Result ModuleLoss::loss_and_gradients(UnitParameters parameters, const Carry& in,
                                                const MicroBatch& batch, double scale,
                                                bool want_grad_in, GradientSink& sink) const {
  Carry leaves;
  for (const at::Tensor& tensor : in) {
    leaves.push_back(tensor.detach().requires_grad_(want_grad_in));
  }
  const at::AutoGradMode grad_mode(true);
  const at::Tensor loss = loss_sum(leaves, batch);
  torch::autograd::variable_list inputs;
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!sink.wants(static_cast<int32_t>(i))) continue;
    inputs.push_back(parameters[i]);
    wanted.push_back(static_cast<int32_t>(i));
  }
  if (want_grad_in) inputs.insert(inputs.end(), leaves.begin(), leaves.end());
  Result result = result_of(loss.detach(), batch);
  if (inputs.empty()) return result;
  torch::autograd::variable_list grads =
      torch::autograd::grad({loss}, inputs, {at::full_like(loss, scale)});
  for (size_t i = 0; i < wanted.size(); ++i) sink.add(wanted[i], grads[i]);
  result.grad_in.assign(grads.begin() + static_cast<int64_t>(wanted.size()), grads.end());
  return result;
}

}  // namespace

ModuleModel::ModuleModel() = default;

ModuleModel::~ModuleModel() = default;

void ModuleModel::add_spec(const std::string& name, const torch::nn::Module& module,
                           std::vector<CarryTensorSpec> carry_out) {
  LONGSHORE_CHECK(loss_ == nullptr) << "the loss is the last unit";
  UnitSpec unit;
  unit.id = UnitId(static_cast<int32_t>(spec_.units.size()));
  unit.name = name;
  unit.carry_out = std::move(carry_out);
  for (const auto& parameter : module.named_parameters()) {
    unit.parameters.push_back({.name = name + "." + parameter.key(),
                               .shape = parameter.value().sizes().vec(),
                               .frozen = !parameter.value().requires_grad(),
                               .init = {}});
    initial_[unit.parameters.back().name] =
        parameter.value().detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).flatten();
  }
  spec_.units.push_back(std::move(unit));
}

void ModuleModel::add_unit(const std::string& name, std::shared_ptr<torch::nn::Module> module,
                           Forward forward, std::vector<CarryTensorSpec> carry_out) {
  add_spec(name, *module, std::move(carry_out));
  units_.push_back(std::make_unique<ModuleUnit>(std::move(module), std::move(forward)));
}

void ModuleModel::add_loss(const std::string& name, std::shared_ptr<torch::nn::Module> module,
                           Scores scores) {
  add_spec(name, *module, {});
  loss_ = std::make_unique<ModuleLoss>(std::move(module), std::move(scores));
}

void ModuleModel::read_initial(const std::string& parameter, int64_t begin,
                               std::span<float> out) const {
  const auto found = initial_.find(parameter);
  LONGSHORE_CHECK(found != initial_.end()) << "no initial value of " << parameter;
  const float* source = found->second.const_data_ptr<float>() + begin;
  std::copy(source, source + out.size(), out.begin());
}

const Unit& ModuleModel::unit(UnitId id) const {
  return *units_.at(static_cast<size_t>(id.value));
}

const LossUnit& ModuleModel::loss_unit() const {
  LONGSHORE_CHECK(loss_ != nullptr) << "add_loss was not called";
  return *loss_;
}

}  // namespace longshore
