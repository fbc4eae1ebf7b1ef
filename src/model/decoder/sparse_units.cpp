#include "model/decoder/sparse_units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "model/ops/fused_ops.h"
#include "model/ops/row_ops.h"
#include "model/units/unit.h"

namespace longshore {
namespace {

std::vector<ModuleParameter> parameters_of(const ArchSpec& arch, int64_t layer,
                                           const TableRows& experts) {
  return group_parameters(block_parameters(arch, {}, layer, BlockPart::kMlp), experts);
}

// Calls use(pairs, rows) for an expert's tokens, in pieces of bounded size; `rows` are tokens.
template <typename Use>
void for_pieces_of(int64_t expert, const Dispatch& tokens, int64_t top_k, const Use& use) {
  const int64_t end = tokens.starts.at(static_cast<size_t>(expert) + 1);
  for (int64_t begin = tokens.starts.at(static_cast<size_t>(expert)); begin < end;
       begin += kExpertRows) {
    const at::Tensor pairs = tokens.pairs.narrow(0, begin, std::min(kExpertRows, end - begin));
    use(pairs, pairs.floor_divide(top_k));
  }
}

ExpertRows rows_of(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& pairs,
                   const at::Tensor& rows) {
  return {x.index_select(0, rows), weights.index_select(0, pairs).unsqueeze(1)};
}

// Gives the gradients of a router's or a switch's matrix and adapter, given that of the output, and
// adds that of x to `sum`, fp32.
void add_backward(const Linear& linear, const at::Tensor& grad, const at::Tensor& x,
                  const at::Tensor& sum, GradientSink& sink) {
  const at::ScalarType type = grad.scalar_type();
  if (linear.wants(sink, ParameterRole::kWeight)) {
    linear.add_weight_gradient(sink, grad, x.to(type));
  }
  sum.add_(linear.input_gradient(grad));
  if (!linear.lora.a.defined()) return;
  const at::Tensor in = x.to(type);
  const auto own = LinearGradients::of(linear, grad, in, sink);
  sum.add_(at::mm(own.inner, linear.lora.a.to(type)));
}

}  // namespace

TableRows all_experts(const ArchSpec& arch) {
  return {.first = 0, .count = arch.moe.experts, .all = arch.moe.experts};
}

// The residual h, the input x of the experts, the normed input of the router and of the expert for
// all tokens, and the routing of the tokens. `shares` are the weights before they are scaled by
// expert.
struct ExpertsUnit::State {
  at::Tensor h, x, router_x, shares;
  Routing routing;
};

// The fp32 sums of gradients.
struct ExpertsUnit::Sums {
  at::Tensor x;        // of the shape of the experts' input
  at::Tensor routing;  // [T, 2 * top_k]: weights, then top_k zeros
};

ExpertsUnit::ExpertsUnit(const ArchSpec& arch, int64_t layer, const TableRows& experts)
    : arch_(arch.of_layer(arch.layers.at(static_cast<size_t>(layer)))),
      layer_(layer),
      experts_(experts),
      index_(parameters_of(arch, layer, experts), arch),
      math_(arch, arch.moe.width),
      shared_math_(arch, arch.moe.shared_width),
      root_(1.0 / std::sqrt(static_cast<double>(arch.hidden))) {
  const NormPlacement placed = arch.moe.beside ? NormPlacement::kBoth : NormPlacement::kBefore;
  LONGSHORE_CHECK(arch.norm_placement == placed && arch.residual_scale == 1.0)
      << arch.family << ": experts between other norms";
  LONGSHORE_CHECK(!arch.moe.beside || (experts.begins() && experts.ends()))
      << arch.family << ": a group of experts beside an MLP";
}

UnitTraits ExpertsUnit::traits(const UnitUse& use) const {
  const MoeSpec& moe = arch_.moe;
  UnitTraits traits{.documents = {use.longest_document},
                    .idle_elements = idle_elements(),
                    .has_router = experts_.begins()};
  traits.signature = signature_text(
      "experts", arch_.hidden, moe.experts, moe.top_k, moe.width, moe.latent, moe.shared_width,
      experts_.first, experts_.count, arch_.norm, arch_.gated, arch_.activation, moe.scores,
      moe.groups, moe.kept_groups, moe.correction, moe.shared_switch,
      moe.beside ? arch_.intermediate : 0, moe.renormalise, moe.rounded_weights, moe.transposed,
      moe.interleaved, moe.clamp != 0.0, moe.balance != 0.0, moe.watched);
  for (int64_t choice = 0; choice < moe.top_k && !experts_.begins(); ++choice) {
    const int64_t expert = (experts_.first + choice) % moe.experts;
    traits.worst_input.push_back(
        {.tensor = 1, .column = moe.top_k + choice, .value = static_cast<double>(expert)});
  }
  return traits;
}

int64_t ExpertsUnit::idle_elements() const {
  const int64_t met = std::min(arch_.moe.top_k, experts_.count);
  const int64_t outer = arch_.experts_hidden(), width = arch_.moe.width;
  int64_t of_one = arch_.expert_elements();
  if (arch_.adapter.adapts(layer_, Module::kExpertsDown)) {
    of_one += arch_.adapter.size_of(layer_, Module::kExpertsGateUp).rank *
                  (outer + (arch_.gated ? 2 : 1) * width) +
              arch_.adapter.size_of(layer_, Module::kExpertsDown).rank * (outer + width);
  }
  return (experts_.count - met) * of_one;
}

at::ScalarType ExpertsUnit::router_type(const at::Tensor& x) const {
  return arch_.moe.scores == RouterScores::kSigmoid ? at::kFloat : x.scalar_type();
}

at::Tensor ExpertsUnit::scores(UnitParameters parameters, const at::Tensor& normed,
                               const MicroBatch& batch) const {
  return index_.undropped(parameters, Module::kRouter, batch)
      .product(normed.to(router_type(normed)));
}

Expert ExpertsUnit::expert(UnitParameters parameters, int64_t place,
                           const MicroBatch& batch) const {
  Expert one{
      .gate_up = index_.undropped(parameters, Module::kExpertsGateUp, batch).of_matrix(place),
      .down = index_.undropped(parameters, Module::kExpertsDown, batch).of_matrix(place)};
  one.gate.by_row = one.up.by_row = one.gate_up.by_row;
  const int64_t number = experts_.first + place;
  index_.set_own(one.gate, parameters, Module::kExpertGate, number);
  index_.set_own(one.up, parameters, Module::kExpertUp, number);
  index_.set_own(one.down, parameters, Module::kExpertDown, number);
  return one;
}

Expert ExpertsUnit::shared_expert(UnitParameters parameters, const MicroBatch& batch) const {
  return {.gate = index_.undropped(parameters, Module::kSharedGate, batch),
          .up = index_.undropped(parameters, Module::kSharedUp, batch),
          .down = index_.undropped(parameters, Module::kSharedDown, batch)};
}

ExpertsUnit::State ExpertsUnit::begin(UnitParameters parameters, const Carry& in,
                                      const MicroBatch& batch) const {
  State state;
  if (experts_.begins()) {
    state.h = in.at(0);
    if (arch_.moe.beside) {
      begin_beside(parameters, batch, state);
      return state;
    }
    state.router_x =
        normalise(state.h, index_.weight(parameters, Module::kMlpNorm),
                  index_.bias(parameters, Module::kMlpNorm), arch_.norm, arch_.norm_eps);
    state.x = in_latent()
                  ? index_.undropped(parameters, Module::kExpertsIn, batch).product(state.router_x)
                  : state.router_x;
    at::Tensor correction =
        batch.routers != nullptr ? batch.routers->correction(layer_) : at::Tensor();
    if (!correction.defined()) correction = index_.weight(parameters, Module::kRouterCorrection);
    if (correction.defined()) correction = correction.to(at::kFloat);
    state.routing = route(scores(parameters, state.router_x, batch), arch_.moe, correction,
                          batch.continued != nullptr);
    return state;
  }
  const int64_t top_k = arch_.moe.top_k;
  state.routing.weights = in.at(1).narrow(1, 0, top_k).contiguous();
  state.routing.experts = in.at(1).narrow(1, top_k, top_k).to(at::kLong);
  state.h = in.at(2);
  state.x = in.at(3);
  return state;
}

void ExpertsUnit::begin_beside(UnitParameters parameters, const MicroBatch& batch,
                               State& state) const {
  const auto normed = [&](Module module, NormKind kind) {
    return normalise(state.h, index_.weight(parameters, module), {}, kind, arch_.norm_eps);
  };
  state.x = normed(Module::kExpertsNorm, arch_.norm);
  state.router_x = normed(Module::kRouterScale, NormKind::kRms).mul_(root_);
  state.routing =
      route(scores(parameters, state.router_x, batch), arch_.moe, {}, batch.continued != nullptr);
  state.shares = state.routing.weights;
  const at::Tensor scales = index_.weight(parameters, Module::kRouterExpertScale);
  state.routing.weights = state.shares * scales.to(at::kFloat).take(state.routing.experts);
}

at::Tensor ExpertsUnit::joined(UnitParameters parameters, const Carry& in,
                               const MicroBatch& batch) const {
  const at::Tensor& h = in.at(0);
  const auto normed = [&](Module module, const at::Tensor& x) {
    return normalise(x, index_.weight(parameters, module), {}, arch_.norm, arch_.norm_eps);
  };
  const std::array weights{index_.linear(parameters, Module::kGate, batch),
                           index_.linear(parameters, Module::kUp, batch)};
  const std::vector<at::Tensor> inner = linear_group(
      h, index_.norm(parameters, Module::kMlpNorm, arch_.norm, arch_.norm_eps), weights);
  const at::Tensor mlp = activate_and_project(
      inner[0], inner[1], index_.linear(parameters, Module::kDown, batch), arch_.activation);
  const at::Tensor both = normed(Module::kMlpInnerNorm, mlp) +
                          normed(Module::kExpertsPostNorm, in.at(1).to(h.scalar_type()));
  const at::Tensor sum = normed(Module::kMlpPostNorm, both).add_(h);
  const at::Tensor factor = index_.weight(parameters, Module::kLayerScale);
  return factor.defined() ? sum * factor.detach() : sum;
}

Carry ExpertsUnit::joined_backward(UnitParameters parameters, const State& state,
                                   const MicroBatch& batch, const Carry& grad_out,
                                   GradientSink& sink) const {
  const auto wide = state.h.options().dtype(at::kFloat).requires_grad(false);
  const at::Tensor sum = at::zeros(state.h.sizes(), wide);
  add_experts(parameters, state, dispatch(state.routing.experts, arch_.moe.experts), batch, sum);
  const Carry leaves{state.h.detach().requires_grad_(true), sum.requires_grad_(true)};
  Carry out;
  {
    const at::AutoGradMode grad_mode(true);
    out = {joined(parameters, leaves, batch)};
  }
  return autograd_backward(parameters, leaves, out, grad_out, /*want_grad_in=*/true, sink);
}

void ExpertsUnit::scale_backward(UnitParameters parameters, const State& state, const Sums& sums,
                                 GradientSink& sink) const {
  const at::Tensor grad = sums.routing.narrow(1, 0, arch_.moe.top_k);
  const int32_t place = index_.weight_index(Module::kRouterExpertScale);
  if (sink.wants(place)) {
    const at::Tensor of_each = at::zeros({grad.size(0), arch_.moe.experts}, grad.options());
    of_each.scatter_(1, state.routing.experts, grad * state.shares);
    sink.add(place, row_sum(of_each));
  }
  const at::Tensor scales = index_.weight(parameters, Module::kRouterExpertScale);
  grad.mul_(scales.to(at::kFloat).take(state.routing.experts));
}

at::Tensor ExpertsUnit::shared_weights(UnitParameters parameters, const at::Tensor& x,
                                       const MicroBatch& batch) const {
  if (!arch_.moe.shared_switch) return at::ones({x.size(0), 1}, x.options().dtype(at::kFloat));
  const Linear chooser = index_.undropped(parameters, Module::kSharedSwitch, batch);
  return sigmoid(chooser.product(x), chooser.by_row).to(at::kFloat);
}

void ExpertsUnit::add_shared(UnitParameters parameters, const at::Tensor& x,
                             const MicroBatch& batch, const at::Tensor& sum) const {
  const at::Tensor weights = shared_weights(parameters, x, batch);
  for (int64_t begin = 0; begin < x.size(0); begin += kExpertRows) {
    const int64_t count = std::min(kExpertRows, x.size(0) - begin);
    const ExpertRows rows{x.narrow(0, begin, count), weights.narrow(0, begin, count)};
    sum.narrow(0, begin, count).add_(shared_math_.outputs(shared_expert(parameters, batch), rows));
  }
}

void ExpertsUnit::shared_backward(UnitParameters parameters, const at::Tensor& x,
                                  const at::Tensor& grad, const Sums& sums,
                                  GradientSink& sink) const {
  const at::Tensor weights = shared_weights(parameters, x, {});
  const Linear chooser = index_.linear(parameters, Module::kSharedSwitch).unpack();
  for (int64_t begin = 0; begin < x.size(0); begin += kExpertRows) {
    const int64_t count = std::min(kExpertRows, x.size(0) - begin);
    const ExpertRows rows{x.narrow(0, begin, count), weights.narrow(0, begin, count)};
    const ExpertMath::Gradients grads = shared_math_.gradients(shared_expert(parameters, {}), rows,
                                                               grad.narrow(0, begin, count), sink);
    const at::Tensor grad_x = sums.x.narrow(0, begin, count).add_(grads.x);
    if (!chooser.weight.defined()) continue;
    const at::Tensor grad_switch =
        at::sigmoid_backward(grads.weights.unsqueeze(1), rows.weights).to(x.scalar_type());
    add_backward(chooser, grad_switch, rows.x, grad_x, sink);
  }
}

at::Tensor ExpertsUnit::grad_of_sum(UnitParameters parameters, const State& state, const Carry& in,
                                    const at::Tensor& grad, GradientSink& sink) const {
  const at::ScalarType compute = state.h.scalar_type();
  at::Tensor sum;
  if (sink.wants(index_.weight_index(Module::kExpertsOut))) {
    const auto wide = state.x.options().dtype(at::kFloat);
    sum =
        experts_.begins() ? at::zeros(state.x.sizes(), wide) : in.at(0).to(at::kFloat, false, true);
    add_experts(parameters, state, dispatch(state.routing.experts, arch_.moe.experts), {}, sum);
    sum = sum.to(compute);
  }
  const Linear out = index_.linear(parameters, Module::kExpertsOut);
  out.add_weight_gradient(sink, grad, sum);
  return out.input_gradient(grad);
}

void ExpertsUnit::add_experts(UnitParameters parameters, const State& state, const Dispatch& tokens,
                              const MicroBatch& batch, const at::Tensor& sum) const {
  const int64_t top_k = arch_.moe.top_k;
  const at::Tensor weights = state.routing.weights.view({-1});
  for (int64_t i = 0; i < experts_.count; ++i) {
    for_pieces_of(experts_.first + i, tokens, top_k,
                  [&](const at::Tensor& pairs, const at::Tensor& rows) {
                    const ExpertRows own = rows_of(state.x, weights, pairs, rows);
                    add_to_rows(sum, rows, math_.outputs(expert(parameters, i, batch), own));
                  });
  }
}

void ExpertsUnit::experts_backward(UnitParameters parameters, const State& state,
                                   const at::Tensor& grad, const Sums& sums,
                                   GradientSink& sink) const {
  const int64_t top_k = arch_.moe.top_k;
  const Dispatch tokens = dispatch(state.routing.experts, arch_.moe.experts);
  const at::Tensor weights = state.routing.weights.view({-1});
  const at::Tensor grad_weights = sums.routing.view({-1});
  for (int64_t i = experts_.count; i-- > 0;) {
    for_pieces_of(
        experts_.first + i, tokens, top_k, [&](const at::Tensor& pairs, const at::Tensor& rows) {
          const ExpertRows own = rows_of(state.x, weights, pairs, rows);
          const ExpertMath::Gradients grads =
              math_.gradients(expert(parameters, i, {}), own, grad.index_select(0, rows), sink);
          add_to_rows(sums.x, rows, grads.x.to(at::kFloat));
          // A row of `routing` has top_k more elements behind those of the weights.
          copy_rows(grad_weights, pairs + rows * top_k, grads.weights);
        });
  }
}

void ExpertsUnit::router_backward(UnitParameters parameters, const State& state,
                                  const at::Tensor& balance, const Sums& sums,
                                  const at::Tensor& input, GradientSink& sink) const {
  const Linear router = index_.linear(parameters, Module::kRouter);
  const at::Tensor wide =
      route_backward(sums.routing.narrow(1, 0, arch_.moe.top_k), balance, state.routing, arch_.moe);
  router.add_bias_gradient(sink, wide);
  add_backward(router, wide.to(router_type(state.router_x)), state.router_x, input, sink);
}

at::Tensor ExpertsUnit::norm_backward(UnitParameters parameters, Module module, NormKind kind,
                                      const at::Tensor& h, const at::Tensor& grad,
                                      GradientSink& sink) const {
  const NormGradients own = index_.norm_gradients(parameters, module, kind, arch_.norm_eps, sink);
  const at::Tensor result = own.backward(grad.to(h.scalar_type()), h);
  own.add_to(sink);
  return result;
}

Carry ExpertsUnit::forward(UnitParameters parameters, const Carry& in,
                           const MicroBatch& batch) const {
  const at::NoGradGuard no_grad;
  const State state = begin(parameters, in, batch);
  const auto wide = state.h.options().dtype(at::kFloat).requires_grad(false);
  const at::Tensor sum = experts_.begins() ? at::zeros(state.x.sizes(), wide) : in.at(0).clone();
  at::Tensor h = state.h;
  if (experts_.begins() && arch_.moe.shared_width > 0) {
    // A sum of another width cannot hold that expert's output, so the residual does.
    const at::Tensor output = in_latent() ? h.to(at::kFloat, false, /*copy=*/true) : sum;
    add_shared(parameters, state.router_x, batch, output);
    if (in_latent()) h = output.to(h.scalar_type());
  }
  const Dispatch tokens = dispatch(state.routing.experts, arch_.moe.experts);
  if (experts_.begins() && batch.routers != nullptr) {
    batch.routers->note(layer_, tokens.starts, state.routing.of_all);
  }
  add_experts(parameters, state, tokens, batch, sum);
  if (arch_.moe.beside) {
    Carry out{joined(parameters, {state.h, sum}, batch)};
    out.insert(out.end(), in.begin() + 1, in.end());
    return out;
  }
  if (experts_.ends()) {
    const at::Tensor output = sum.to(h.scalar_type());
    if (!in_latent()) return {output.add_(h)};
    return {index_.undropped(parameters, Module::kExpertsOut, batch).product(output).add_(h)};
  }
  const at::Tensor routing =
      experts_.begins() ? at::cat({state.routing.weights, state.routing.experts.to(at::kFloat)}, 1)
                        : in.at(1);
  return {sum, routing, h, state.x};
}

Carry ExpertsUnit::backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            const Carry& grad_out, GradientSink& sink) const {
  const at::NoGradGuard no_grad;  // has_own_backward
  const State state = begin(parameters, in, batch);
  const at::ScalarType compute = state.h.scalar_type();
  const auto wide = state.h.options().dtype(at::kFloat).requires_grad(false);
  Sums sums;
  at::Tensor grad_h;
  at::Tensor grad = grad_out.at(0).to(compute);
  if (experts_.ends()) {
    sums.x = at::zeros(state.x.sizes(), wide);
    sums.routing = at::zeros({state.x.size(0), 2 * arch_.moe.top_k}, wide);
    if (arch_.moe.beside) {
      const Carry grads = joined_backward(parameters, state, batch, {grad}, sink);
      grad_h = grads.at(0), grad = grads.at(1).to(compute);
    } else {
      grad_h = grad.clone();  // the buffer of grad_out is reused
      if (in_latent()) grad = grad_of_sum(parameters, state, in, grad, sink);
    }
  } else {
    sums.routing = grad_out.at(1);
    grad_h = grad_out.at(2);
    sums.x = grad_out.at(3);
  }
  experts_backward(parameters, state, grad, sums, sink);
  if (!experts_.begins()) return {grad.to(at::kFloat), sums.routing, grad_h, sums.x};
  if (in_latent()) {
    const Linear into = index_.linear(parameters, Module::kExpertsIn);
    const at::Tensor by_product = sums.x.to(compute);
    into.add_weight_gradient(sink, by_product, state.router_x);
    sums.x = into.input_gradient(by_product).to(at::kFloat);
  }
  if (arch_.moe.shared_width > 0) {
    shared_backward(parameters, state.router_x, in_latent() ? grad_h : grad, sums, sink);
  }
  const at::Tensor balance = batch.routers != nullptr ? batch.routers->gradient() : at::Tensor();
  const Module norm = arch_.moe.beside ? Module::kExpertsNorm : Module::kMlpNorm;
  if (!arch_.moe.beside) {
    router_backward(parameters, state, balance, sums, sums.x, sink);
  } else {
    scale_backward(parameters, state, sums, sink);
    const at::Tensor input = at::zeros(state.x.sizes(), wide);
    router_backward(parameters, state, balance, sums, input, sink);
    grad_h = grad_h + norm_backward(parameters, Module::kRouterScale, NormKind::kRms, state.h,
                                    input.mul_(root_), sink);
  }
  Carry grads{norm_backward(parameters, norm, arch_.norm, state.h, sums.x, sink).add_(grad_h)};
  if (arch_.moe.beside) grads.insert(grads.end(), grad_out.begin() + 1, grad_out.end());
  return grads;
}

SparseBlock::SparseBlock(const ArchSpec& arch, int64_t layer)
    : attention_parameters_(block_parameters(arch, {}, layer, BlockPart::kAttention).size()),
      attention_(arch, layer, BlockPart::kAttention),
      experts_(arch, layer, all_experts(arch)) {}

UnitTraits SparseBlock::traits(const UnitUse& use) const {
  UnitTraits traits = attention_.traits(use);
  const UnitTraits experts = experts_.traits(use);
  traits.signature += "; " + experts.signature;
  traits.idle_elements = experts.idle_elements;
  traits.has_router = true;
  return traits;
}

Carry SparseBlock::forward(UnitParameters parameters, const Carry& in,
                           const MicroBatch& batch) const {
  const at::NoGradGuard no_grad;
  return experts_.forward(parameters.from(attention_parameters_),
                          attention_.forward(parameters.first(attention_parameters_), in, batch),
                          batch);
}

Carry SparseBlock::backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            const Carry& grad_out, GradientSink& sink) const {
  const UnitParameters own = parameters.first(attention_parameters_);
  Carry leaves, h;
  for (const at::Tensor& tensor : in) leaves.push_back(tensor.detach().requires_grad_(true));
  {
    const at::AutoGradMode grad_mode(true);
    h = attention_.forward(own, leaves, batch);
  }
  std::vector<int32_t> expert_parameters(parameters.size() - attention_parameters_);
  std::iota(expert_parameters.begin(), expert_parameters.end(),
            static_cast<int32_t>(attention_parameters_));
  MappedSink expert_sink(&sink, &expert_parameters);
  const Carry grad = experts_.backward(parameters.from(attention_parameters_), {h.front().detach()},
                                       batch, grad_out, expert_sink);
  Carry grads = autograd_backward(own, leaves, h, grad, /*want_grad_in=*/true, sink);
  // Several layers add to the gradients of keys and values.
  for (size_t i = 1; i < grads.size(); ++i) grads[i] = grads[i].to(at::kFloat);
  return grads;
}

}  // namespace longshore
