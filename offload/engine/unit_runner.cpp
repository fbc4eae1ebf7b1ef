#include "offload/engine/unit_runner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.h"
#include "device/counting_allocator.h"
#include "device/gpu_tensors.h"
#include "model/ops/row_ops.h"
#include "model/ops/wide_products.h"
#include "model/units/router_load.h"
#include "model/units/unit.h"

namespace longshore {
namespace {

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

c10::Storage make_storage(Bytes bytes, c10::Device device) {
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
                                            c10::DataPtr(nullptr, device), nullptr, false));
}

// Returns a parameter whose bytes begin there, in its storage type.
at::Tensor view_of(const c10::Storage& storage, Bytes begin, const ParamSpec& parameter,
                   DType compute, at::Device device) {
  const StoredMatrices stored = stored_matrices(parameter, compute);
  std::vector<int64_t> shape = parameter.shape;
  at::ScalarType type = at::kByte;
  if (!is_packed(stored.type)) {
    type = scalar_type_of(number_of(stored.type));
  } else if (parameter.stacked) {
    shape = {stored.count, stored.distance};
  } else {
    shape = {stored.bytes};
  }
  const auto width = static_cast<Bytes>(c10::elementSize(type));
  return at::empty({0}, at::TensorOptions().dtype(type).device(device))
      .set_(storage, begin / width, shape, contiguous_strides(shape));
}

}  // namespace

ParameterViews::ParameterViews(const Model& model, const std::vector<FlatLayout>& layouts,
                               at::Device device)
    : device_(device) {
  const ModelSpec& spec = model.spec();
  std::vector<std::vector<at::Tensor>> owned(spec.units.size());
  for (const UnitSpec& unit : spec.units) {
    const FlatLayout& layout = layouts.at(static_cast<size_t>(unit.id.value));
    storages_.push_back(make_storage(layout.flat_bytes(), device));
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const Bytes begin = layout.parameter_bytes(static_cast<int32_t>(i)).begin;
      owned[static_cast<size_t>(unit.id.value)].push_back(
          view_of(storages_.back(), begin, unit.parameters[i], layout.compute(), device));
    }
  }
  for (const UnitSpec& unit : spec.units) {
    std::vector<at::Tensor> views = owned[static_cast<size_t>(unit.id.value)];
    std::vector<bool> trainable;
    for (const ParamSpec& parameter : unit.parameters) trainable.push_back(!parameter.frozen);
    for (ParamRef ref : unit.tied) {
      views.push_back(owned[static_cast<size_t>(ref.unit.value)][static_cast<size_t>(ref.index)]);
      trainable.push_back(!spec.parameter(ref).frozen);
    }
    const bool last = unit.id.value + 1 == static_cast<int32_t>(spec.units.size());
    leaves_.push_back(last ? model.loss_unit().leaves(views) : model.unit(unit.id).leaves(views));
    for (size_t i = 0; i < views.size(); ++i) {
      leaves_.back()[i].requires_grad_(trainable[i]);
    }
  }
}

void ParameterViews::bind(const UnitLease& lease) {
  c10::StorageImpl* storage =
      storages_.at(static_cast<size_t>(lease.unit().value)).unsafeGetStorageImpl();
  LONGSHORE_CHECK(lease.bytes().size() == storage->nbytes()) << "unit " << lease.unit();
  storage->set_data_ptr_noswap(c10::DataPtr(lease.bytes().data(), device_));
}

RunningSum::RunningSum(const UnitSpec& unit, const FlatLayout& layout, std::span<std::byte> memory,
                       at::Device device) {
  const int64_t elements = layout.trainable_elements();
  LONGSHORE_CHECK(static_cast<int64_t>(memory.size()) >= elements * 4) << unit.name;
  sums_ = {reinterpret_cast<float*>(memory.data()), static_cast<size_t>(elements)};
  const auto view = [&](int64_t begin, at::IntArrayRef shape) {
    return tensor_over(sums_.data() + begin, shape, at::kFloat, device);
  };
  std::map<int64_t, int64_t> ranges;  // from the begin of each parameter to its end
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ParamSpec& parameter = unit.parameters[i];
    parameters_.emplace_back();
    if (parameter.frozen) continue;
    const ElementRange range = layout.parameter(static_cast<int32_t>(i));
    parameters_.back() = view(range.begin, parameter.shape);
    ranges[range.begin] = range.end();
  }
  ranges[elements] = elements;
  int64_t end = 0;
  for (const auto& [begin, next] : ranges) {
    if (begin > end) paddings_.push_back(view(end, {begin - end}));
    end = next;
  }
  new_.resize(parameters_.size());
}

void RunningSum::clear() {
  for (at::Tensor& padding : paddings_) padding.zero_();
  new_.assign(parameters_.size(), true);
}

void RunningSum::finish() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].defined()) begun(static_cast<int32_t>(i));
  }
}

const at::Tensor& RunningSum::begun(int32_t parameter) {
  const auto i = static_cast<size_t>(parameter);
  const at::Tensor& sum = parameters_.at(i);
  if (new_.at(i)) sum.zero_();
  new_[i] = false;
  return sum;
}

void RunningSum::add(int32_t parameter, const at::Tensor& grad) {
  const at::Tensor& sum = begun(parameter);
  if (grad.scalar_type() == at::kFloat || on_gpu(grad)) {
    sum.add_(grad);  // a GPU converts during the addition
    return;
  }
  constexpr int64_t kPieceElements = int64_t{1} << 18;  // bounds the temporary
  const at::Tensor flat_sum = sum.view({-1});
  const at::Tensor flat_grad = grad.contiguous().view({-1});
  for (int64_t begin = 0; begin < flat_sum.numel(); begin += kPieceElements) {
    const int64_t elements = std::min(kPieceElements, flat_sum.numel() - begin);
    flat_sum.narrow(0, begin, elements).add_(flat_grad.narrow(0, begin, elements));
  }
}

void RunningSum::add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) {
  add_to_rows(begun(parameter), rows, values.to(at::kFloat));
}

void RunningSum::add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) {
  const auto i = static_cast<size_t>(parameter);
  if (new_.at(i)) {
    set_wide_product(parameters_.at(i), left.t(), right);  // saves a pass that writes zeros
  } else {
    add_wide_product(parameters_.at(i), left.t(), right);
  }
  new_[i] = false;
}

void RunningSum::add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                                const at::Tensor& right) {
  add_wide_product(begun(parameter).select(0, matrix), left.t(), right);
}

// The graph that backward of one unit and micro-batch differentiates.
struct UnitRunner::SavedGraph {
  Carry in;  // leaves
  Carry out;
};

// Sends a unit's gradients to its own accumulator, and those of tied parameters to the owner's.
class UnitRunner::Sink : public GradientSink {
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
  void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                      const at::Tensor& right) override {
    if (!wants(parameter)) return;
    target(parameter)->add_product_at(owner_of(parameter).index, matrix, left, right);
  }

 private:
  ParamRef owner_of(int32_t parameter) const {
    const int32_t owned = static_cast<int32_t>(unit_->parameters.size());
    if (parameter < owned) return {unit_->id, parameter};
    return unit_->tied.at(static_cast<size_t>(parameter - owned));
  }
  GradientAccumulator* target(int32_t parameter) const {
    return runner_->target(owner_of(parameter).unit);
  }

  UnitRunner* runner_;
  const UnitSpec* unit_;
};

UnitRunner::UnitRunner(const Model* model, const std::vector<FlatLayout>* layouts, DType compute,
                       int32_t kept_graphs, Memory memory)
    : model_(model),
      spec_(&model->spec()),
      first_kept_(last().value - kept_graphs),
      views_(*model, *layouts, memory.device),
      carry_(model->spec(), compute, std::move(memory.carry), memory.device),
      owns_tied_(model->spec().units.size(), false),
      saved_(model->spec().units.size()),
      balance_(model->routers().balance),
      sum_over_ranks_(std::move(memory.sum_over_ranks)) {
  if (model->routers().asked()) routers_.emplace(model->routers(), memory.device);
  for (const UnitSpec& unit : spec_->units) {
    for (ParamRef ref : unit.tied) owns_tied_[index_of(ref.unit)] = true;
  }
  const std::vector<UnitId> order = execution_order(*spec_, Pass::kTrain);
  backward_order_.assign(std::ranges::find(order, last()), order.end());
  for (const UnitSpec& unit : spec_->units) {
    const size_t i = index_of(unit.id);
    auto& sums = accumulators_.emplace_back();
    if (!unit.has_trainable() || !memory.trains) continue;
    if (owns_tied_[i]) {
      sums.push_back(std::make_unique<RunningSum>(unit, layouts->at(i),
                                                  memory.waiting_gradients.at(i), memory.device));
      continue;
    }
    for (std::span<std::byte> buffer : memory.gradients) {
      sums.push_back(std::make_unique<RunningSum>(unit, layouts->at(i), buffer, memory.device));
    }
  }
}

UnitRunner::~UnitRunner() = default;

GradientAccumulator* UnitRunner::accumulator(UnitId unit,
                                             std::optional<GradientBuffer> gradient) const {
  const auto& sums = accumulators_[index_of(unit)];
  if (sums.empty()) return nullptr;
  LONGSHORE_CHECK(gradient.has_value() != owns_tied_[index_of(unit)]) << "unit " << unit;
  return sums[gradient.value_or(GradientBuffer(0))].get();
}

GradientAccumulator* UnitRunner::target(UnitId unit) const {
  return accumulator(unit, owns_tied_[index_of(unit)] ? std::nullopt : gradient_);
}

std::span<float> UnitRunner::sums(UnitId unit, std::optional<GradientBuffer> gradient) const {
  GradientAccumulator* const sums = accumulator(unit, gradient);
  return sums == nullptr ? std::span<float>() : sums->sums();
}

void UnitRunner::bind(std::span<const UnitLease> leases) {
  for (const UnitLease& lease : leases) views_.bind(lease);
}

void UnitRunner::begin_step(std::span<const MicroBatch> batches, double scale) {
  begin(Mode::kTrain, batches);
  scale_ = scale;
  // Users of tied parameters add gradients before the owner's own backward.
  for (const UnitSpec& unit : spec_->units) {
    if (owns_tied_[index_of(unit.id)] && unit.has_trainable()) {
      accumulator(unit.id, std::nullopt)->clear();
    }
  }
}

void UnitRunner::begin_evaluation(std::span<const MicroBatch> batches) {
  begin(Mode::kEvaluate, batches);
}

void UnitRunner::begin_logits(const MicroBatch& batch, const at::Tensor& positions) {
  begin(Mode::kLogits, {&batch, 1});
  positions_ = positions;
}

void UnitRunner::begin(Mode mode, std::span<const MicroBatch> batches) {
  LONGSHORE_CHECK(static_cast<int32_t>(batches.size()) <= carry_.micro_batches())
      << batches.size() << " micro-batches, planned " << carry_.micro_batches();
  mode_ = mode;
  batches_.assign(batches.begin(), batches.end());
  routers_balanced_ = false;
  if (routers_) {
    routers_->begin();
    routers_->count(mode == Mode::kTrain);
    for (MicroBatch& batch : batches_) batch.routers = &*routers_;
  }
  hits_.assign(mode == Mode::kEvaluate ? batches_.size() : 0, {});
  for (size_t i = 0; i < hits_.size(); ++i) {
    const std::shared_ptr<const Loss>& loss = batches_[i].loss;
    batches_[i].hits = loss && loss->traits().scores_first ? nullptr : &hits_[i];
  }
  scale_ = 1.0;
  loss_ = {};
  document_logps_.clear();
  logits_ = at::Tensor();
  logits_parts_.clear();
  for (const UnitSpec& unit : spec_->units) saved_[index_of(unit.id)].clear();
}

void UnitRunner::forward(UnitId unit, std::span<const UnitLease> leases) {
  LONGSHORE_CHECK(mode_ != Mode::kTrain || unit != last()) << "the last unit runs in backward";
  bind(leases);
  const bool keep_graph = mode_ == Mode::kTrain && unit >= first_kept_ &&
                          unit >= backward_order_.back() && !model_->unit(unit).has_own_backward();
  if (unit == last()) {
    finish_forward();
  } else if (keep_graph) {
    forward_with_graph(unit);
  } else {
    forward_without_graph(unit);
  }
}

void UnitRunner::forward_without_graph(UnitId unit) {
  const WorkspaceLabel label(spec_->unit(unit).name + " forward");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < batches_.size(); ++i) {
    const int32_t micro_batch = static_cast<int32_t>(i);
    const MicroBatch& batch = batch_of(unit, micro_batch, /*filled=*/false);
    const Carry in = carry_.input(unit, micro_batch, batch.position_count());
    if (mode_ == Mode::kLogits) {
      const at::Tensor part = model_->unit(unit).logits(views_.leaves(unit), in, batch, positions_);
      if (part.defined()) logits_parts_.push_back(part);
    }
    carry_.keep_input(UnitId(unit.value + 1), micro_batch,
                      model_->unit(unit).forward(views_.leaves(unit), in, batch));
  }
}

const MicroBatch& UnitRunner::batch_of(UnitId unit, int32_t micro_batch, bool filled) {
  MicroBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  batch.results = {.places = {}, .filled = filled};
  if (mode_ == Mode::kTrain) {
    batch.results.places = carry_.results(unit, micro_batch, batch.position_count());
  }
  return batch;
}

void UnitRunner::forward_with_graph(UnitId unit) {
  const WorkspaceLabel label(spec_->unit(unit).name + " forward, graph kept");
  for (size_t i = 0; i < batches_.size(); ++i) {
    const int32_t micro_batch = static_cast<int32_t>(i);
    const Carry in = carry_.input(unit, micro_batch, batches_[i].position_count());
    saved_[index_of(unit)].push_back(
        make_graph(unit, in, batch_of(unit, micro_batch, /*filled=*/false)));
    carry_.keep_input(UnitId(unit.value + 1), micro_batch, saved_[index_of(unit)].back().out);
    carry_.overwrite_running(unit, in);
  }
}

UnitRunner::SavedGraph UnitRunner::make_graph(UnitId unit, const Carry& in,
                                              const MicroBatch& batch) {
  SavedGraph graph;
  graph.in = in;
  if (wants_grad_in(unit)) {
    for (at::Tensor& tensor : graph.in) tensor.requires_grad_(true);
  }
  const at::AutoGradMode grad_mode(true);
  graph.out = model_->unit(unit).forward(views_.leaves(unit), graph.in, batch);
  return graph;
}

void UnitRunner::backward(UnitId unit, std::span<const UnitLease> leases,
                          std::optional<GradientBuffer> gradient) {
  const WorkspaceLabel label(spec_->unit(unit).name + " backward");
  bind(leases);
  gradient_ = gradient;
  GradientAccumulator* const sums = accumulator(unit, gradient);
  if (sums != nullptr && !owns_tied_[index_of(unit)]) sums->clear();
  Sink sink(this, unit);
  if (routers_ && !std::exchange(routers_balanced_, true)) balance_routers();
  if (unit == last()) {
    backward_loss(unit, sink);
  } else {
    for (size_t i = 0; i < batches_.size(); ++i) {
      backward_unit(unit, static_cast<int32_t>(i), sink);
    }
  }
  if (sums != nullptr) sums->finish();
}

std::vector<double> UnitRunner::router_sums() const {
  return model_->routers().asked() ? routers_->sums() : std::vector<double>();
}

void UnitRunner::set_router_corrections(std::vector<float> corrections) {
  if (!routers_) routers_.emplace(model_->routers(), views_.device());
  routers_->set_corrections(std::move(corrections));
}

std::vector<float> UnitRunner::router_corrections() const {
  return routers_ ? routers_->corrections() : std::vector<float>();
}

void UnitRunner::move_router_corrections(std::span<const double> sums) {
  if (model_->routers().correction_rate == 0.0) return;
  std::vector<float> corrections = router_corrections();
  move_corrections(model_->routers(), sums, corrections);
  routers_->set_corrections(std::move(corrections));
}

void UnitRunner::balance_routers() {
  const at::NoGradGuard no_grad;
  const bool in_loss = model_->loss_unit().traits({}).has_router;
  if (balance_ == 0.0) {
    routers_->count(in_loss);
    return;
  }
  // A loss with routers runs forward and backward together, which is too late for balancing, so
  // forward runs alone first.
  for (size_t i = 0; in_loss && i < batches_.size(); ++i) {
    model_->loss_unit().loss(
        views_.leaves(last()),
        carry_.activation_checkpoint(last(), static_cast<int32_t>(i), batches_[i].position_count()),
        batch_of(last(), static_cast<int32_t>(i), /*filled=*/false));
  }
  routers_->count(false);
  std::vector<double> pairs = routers_->pooled();
  // HOST WAIT: the gradient of every router depends on the expert choices of all ranks.
  if (sum_over_ranks_) sum_over_ranks_(pairs);
  routers_->balance(pairs);
}

void UnitRunner::backward_loss(UnitId unit, GradientSink& sink) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < batches_.size(); ++i) {
    const int32_t micro_batch = static_cast<int32_t>(i);
    const Carry in = carry_.activation_checkpoint(unit, micro_batch, batches_[i].position_count());
    const LossUnit::Result result = model_->loss_unit().loss_and_gradients(
        views_.leaves(unit), in, batch_of(unit, micro_batch, /*filled=*/false), scale_,
        wants_grad_in(unit), sink);
    loss_ += result;
    if (wants_grad_in(unit)) carry_.keep_gradient(unit, micro_batch, result.grad_in);
  }
}

void UnitRunner::backward_unit(UnitId unit, int32_t micro_batch, GradientSink& sink) {
  const Unit& code = model_->unit(unit);
  const MicroBatch& batch = batch_of(unit, micro_batch, /*filled=*/true);
  const int64_t positions = batch.position_count();
  if (code.has_own_backward()) {
    const at::NoGradGuard no_grad;
    const Carry grad_in = code.backward(
        views_.leaves(unit), carry_.activation_checkpoint(unit, micro_batch, positions), batch,
        carry_.gradient_out(unit, micro_batch, positions), sink);
    if (wants_grad_in(unit)) carry_.keep_gradient(unit, micro_batch, grad_in);
    return;
  }
  if (unit < first_kept_) {
    const Carry in = carry_.activation_checkpoint(unit, micro_batch, positions);
    MicroBatch recomputed = batch;
    recomputed.graph_only = true;
    run_autograd(unit, micro_batch, make_graph(unit, in, recomputed), sink);
    return;
  }
  // The graph is moved out, so that its memory is free before the next micro-batch.
  const SavedGraph graph = std::move(saved_[index_of(unit)].at(static_cast<size_t>(micro_batch)));
  run_autograd(unit, micro_batch, graph, sink);
}

void UnitRunner::run_autograd(UnitId unit, int32_t micro_batch, const SavedGraph& graph,
                              GradientSink& sink) {
  const int64_t positions = batches_[static_cast<size_t>(micro_batch)].position_count();
  const Carry grad_in = autograd_backward(views_.leaves(unit), graph.in, graph.out,
                                          carry_.gradient_out(unit, micro_batch, positions),
                                          wants_grad_in(unit), sink);
  if (wants_grad_in(unit)) carry_.keep_gradient(unit, micro_batch, grad_in);
}

// Runs the last unit of an evaluation or of a logits pass.
void UnitRunner::finish_forward() {
  const WorkspaceLabel label(spec_->unit(last()).name +
                             (mode_ == Mode::kLogits ? " logits" : " loss"));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < batches_.size(); ++i) {
    const Carry in = carry_.input(last(), static_cast<int32_t>(i), batches_[i].position_count());
    if (mode_ == Mode::kLogits) {
      logits_ = model_->loss_unit().logits(views_.leaves(last()), in, batches_[i], positions_);
      if (!logits_parts_.empty()) logits_ = at::cat(logits_parts_, 1);
      continue;
    }
    const LossUnit::Result result =
        model_->loss_unit().loss(views_.leaves(last()), in, batches_[i]);
    loss_ += result;
    loss_.tokens += hits_[i].count();
    document_logps_.push_back(result.document_logps);
  }
}

}  // namespace longshore
