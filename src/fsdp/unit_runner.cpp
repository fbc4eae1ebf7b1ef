#include "fsdp/unit_runner.h"

#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <utility>

#include "base/errors.h"
#include "device/counting_allocator.h"

namespace longshore {

// What backward of one unit and micro-batch differentiates.
struct UnitRunner::SavedGraph {
  Carry in;  // leaves
  Carry out;
};

// Sends a unit's gradients to its own accumulator, and those of borrowed parameters to the owner's.
class UnitRunner::Sink : public GradSink {
 public:
  Sink(UnitRunner* runner, UnitId unit) : runner_(runner), unit_(&runner->spec_->unit(unit)) {}

  bool wants(int32_t parameter) const override {
    return !runner_->spec_->parameter(owner_of(parameter)).frozen;
  }
  void add(int32_t parameter, const at::Tensor& grad) override {
    if (wants(parameter)) target(parameter)->add(owner_of(parameter).index, grad);
  }
  void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) override {
    if (wants(parameter)) target(parameter)->add_rows(owner_of(parameter).index, rows, values);
  }
  void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) override {
    if (wants(parameter)) target(parameter)->add_product(owner_of(parameter).index, left, right);
  }

 private:
  ParamRef owner_of(int32_t parameter) const {
    const int32_t owned = static_cast<int32_t>(unit_->parameters.size());
    if (parameter < owned) return {unit_->id, parameter};
    return unit_->borrowed.at(static_cast<size_t>(parameter - owned));
  }
  GradAccumulator* target(int32_t parameter) const {
    return runner_->accumulator(owner_of(parameter).unit);
  }

  UnitRunner* runner_;
  const UnitSpec* unit_;
};

UnitRunner::UnitRunner(const Model* model, const std::vector<FlatLayout>* layouts, DType compute,
                       Recompute recompute, Prefetcher* prefetcher, UnitPasses passes,
                       Memory memory)
    : model_(model),
      spec_(&model->spec()),
      recompute_(recompute),
      prefetcher_(prefetcher),
      passes_(std::move(passes)),
      views_(*model, *layouts, compute),
      carry_(model->spec(), scalar_type_of(compute), std::move(memory.carry)),
      lends_(model->spec().units.size(), false),
      saved_(model->spec().units.size()) {
  for (const UnitSpec& unit : spec_->units) {
    for (ParamRef ref : unit.borrowed) lends_[index_of(ref.unit)] = true;
  }
  for (const Visit& visit : passes_.train.visits) {
    const bool forward = backward_order_.empty() && visit.unit != last();
    (forward ? forward_order_ : backward_order_).push_back(visit.unit);
  }
  for (const UnitSpec& unit : spec_->units) {
    std::unique_ptr<GradAccumulator> sum;
    const size_t i = index_of(unit.id);
    if (unit.has_trainable()) {
      sum = std::make_unique<RunningSum>(
          unit, layouts->at(i), lends_[i] ? memory.waiting_gradients.at(i) : memory.gradient);
    }
    accumulators_.push_back(std::move(sum));
  }
}

UnitRunner::~UnitRunner() = default;

std::vector<UnitLease> UnitRunner::bind(UnitId unit) {
  std::vector<UnitLease> leases = prefetcher_->visit(unit);
  for (const UnitLease& lease : leases) views_.bind(lease);
  return leases;
}

void UnitRunner::begin_step(std::span<const MicroBatch> batches, double scale) {
  begin(batches, scale, &passes_.train);
}

void UnitRunner::begin(std::span<const MicroBatch> batches, double scale, const PassPlan* pass) {
  prefetcher_->begin_pass(pass);
  LONGSHORE_CHECK(static_cast<int32_t>(batches.size()) <= carry_.micro_batches())
      << batches.size() << " micro-batches, planned " << carry_.micro_batches();
  batches_ = batches;
  scale_ = scale;
  loss_ = {};
  for (const UnitSpec& unit : spec_->units) {
    saved_[index_of(unit.id)].clear();
    // Gradients of lent parameters arrive before their unit's own backward.
    if (lends_[index_of(unit.id)] && unit.has_trainable()) accumulator(unit.id)->clear();
  }
}

void UnitRunner::forward(UnitId unit) {
  LONGSHORE_CHECK(unit != last()) << "the last unit runs in backward";
  const bool keep_graph = recompute_ == Recompute::kNone && unit >= backward_order_.back() &&
                          !model_->unit(unit).has_own_backward();
  if (keep_graph) {
    forward_with_graph(unit);
  } else {
    forward_without_graph(unit);
  }
}

void UnitRunner::forward_without_graph(UnitId unit) {
  const WorkspaceLabel label(spec_->unit(unit).name + " forward");
  const at::NoGradGuard no_grad;
  const std::vector<UnitLease> leases = bind(unit);
  for (size_t i = 0; i < batches_.size(); ++i) {
    const int32_t micro_batch = static_cast<int32_t>(i);
    const Carry in = carry_.input(unit, micro_batch, batches_[i].position_count());
    carry_.keep_input(UnitId(unit.value + 1), micro_batch,
                      model_->unit(unit).forward(views_.leaves(unit), in, batches_[i]));
  }
}

void UnitRunner::forward_with_graph(UnitId unit) {
  const WorkspaceLabel label(spec_->unit(unit).name + " forward, graph kept");
  const std::vector<UnitLease> leases = bind(unit);
  for (size_t i = 0; i < batches_.size(); ++i) {
    const int32_t micro_batch = static_cast<int32_t>(i);
    saved_[index_of(unit)].push_back(make_graph(unit, micro_batch));
    carry_.keep_input(UnitId(unit.value + 1), micro_batch, saved_[index_of(unit)].back().out);
  }
}

UnitRunner::SavedGraph UnitRunner::make_graph(UnitId unit, int32_t micro_batch) {
  const MicroBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  SavedGraph graph;
  graph.in = carry_.input(unit, micro_batch, batch.position_count());
  if (wants_grad_in(unit)) {
    for (at::Tensor& tensor : graph.in) tensor.requires_grad_(true);
  }
  const at::AutoGradMode grad_mode(true);
  graph.out = model_->unit(unit).forward(views_.leaves(unit), graph.in, batch);
  return graph;
}

std::span<float> UnitRunner::backward(UnitId unit) {
  const WorkspaceLabel label(spec_->unit(unit).name + " backward");
  const std::vector<UnitLease> leases = bind(unit);
  GradAccumulator* const sums = accumulator(unit);
  if (sums != nullptr && !lends_[index_of(unit)]) sums->clear();
  Sink sink(this, unit);
  if (unit == last()) {
    backward_loss(unit, sink);
  } else {
    for (size_t i = 0; i < batches_.size(); ++i) {
      backward_unit(unit, static_cast<int32_t>(i), sink);
    }
  }
  return sums == nullptr ? std::span<float>() : sums->sums();
}

void UnitRunner::backward_loss(UnitId unit, GradSink& sink) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < batches_.size(); ++i) {
    const int32_t micro_batch = static_cast<int32_t>(i);
    const Carry in = carry_.input(unit, micro_batch, batches_[i].position_count());
    const LossUnit::Result result = model_->loss_unit().loss_and_gradients(
        views_.leaves(unit), in, batches_[i], scale_, wants_grad_in(unit), sink);
    loss_.loss += result.loss_sum;
    loss_.trained += result.trained;
    if (wants_grad_in(unit)) carry_.keep_gradient(unit, micro_batch, result.grad_in);
  }
}

void UnitRunner::backward_unit(UnitId unit, int32_t micro_batch, GradSink& sink) {
  const Unit& code = model_->unit(unit);
  if (code.has_own_backward()) {
    const at::NoGradGuard no_grad;
    const MicroBatch& batch = batches_[static_cast<size_t>(micro_batch)];
    const int64_t positions = batch.position_count();
    const Carry grad_in =
        code.backward(views_.leaves(unit), carry_.input(unit, micro_batch, positions), batch,
                      carry_.gradient_out(unit, micro_batch, positions), sink);
    if (wants_grad_in(unit)) carry_.keep_gradient(unit, micro_batch, grad_in);
    return;
  }
  if (recompute_ == Recompute::kUnit) {
    run_autograd(unit, micro_batch, make_graph(unit, micro_batch), sink);
    return;
  }
  // Moved out, so that the graph's memory is free before the next micro-batch.
  const SavedGraph graph = std::move(saved_[index_of(unit)].at(static_cast<size_t>(micro_batch)));
  run_autograd(unit, micro_batch, graph, sink);
}

void UnitRunner::run_autograd(UnitId unit, int32_t micro_batch, const SavedGraph& graph,
                              GradSink& sink) {
  const UnitParameters leaves = views_.leaves(unit);
  const MicroBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  torch::autograd::variable_list inputs;
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].requires_grad()) continue;
    inputs.push_back(leaves[i]);
    wanted.push_back(static_cast<int32_t>(i));
  }
  if (wants_grad_in(unit)) inputs.insert(inputs.end(), graph.in.begin(), graph.in.end());
  torch::autograd::variable_list grads = torch::autograd::grad(
      graph.out, inputs, carry_.gradient_out(unit, micro_batch, batch.position_count()),
      /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (grads[i].defined()) sink.add(wanted[i], grads[i]);
    grads[i].reset();
  }
  if (!wants_grad_in(unit)) return;
  carry_.keep_gradient(unit, micro_batch,
                       Carry(grads.begin() + static_cast<int64_t>(wanted.size()), grads.end()));
}

LossSum UnitRunner::evaluate(std::span<const MicroBatch> batches) {
  begin(batches, 1.0, &passes_.forward);
  const at::NoGradGuard no_grad;
  for (UnitId unit : forward_order_) forward_without_graph(unit);
  const WorkspaceLabel label(spec_->unit(last()).name + " loss");
  const std::vector<UnitLease> leases = bind(last());
  for (size_t i = 0; i < batches.size(); ++i) {
    const Carry in = carry_.input(last(), static_cast<int32_t>(i), batches[i].position_count());
    const LossUnit::Result result = model_->loss_unit().loss(views_.leaves(last()), in, batches[i]);
    loss_.loss += result.loss_sum;
    loss_.trained += result.trained;
  }
  return loss_;
}

at::Tensor UnitRunner::logits(const MicroBatch& batch, const at::Tensor& positions) {
  begin({&batch, 1}, 1.0, &passes_.forward);
  const at::NoGradGuard no_grad;
  for (UnitId unit : forward_order_) forward_without_graph(unit);
  const WorkspaceLabel label(spec_->unit(last()).name + " logits");
  const std::vector<UnitLease> leases = bind(last());
  return model_->loss_unit().logits(
      views_.leaves(last()), carry_.input(last(), 0, batch.position_count()), batch, positions);
}

}  // namespace longshore
