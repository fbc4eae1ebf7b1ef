#include "model/decoder/expert_math.h"

#include <cmath>
#include <utility>

#include "model/units/differentiable_ops.h"

namespace longshore {
namespace {

// A matrix product has bits that do not depend on the number of threads.
at::Tensor column_sums(const at::Tensor& x) {
  const at::Tensor values = x.to(at::kFloat);
  return at::mm(at::ones({1, values.size(0)}, values.options()), values);
}

void add_bias(GradientSink& sink, int32_t index, int64_t row, const at::Tensor& grad) {
  if (index < 0 || !sink.wants(index)) return;
  const at::Tensor rows = at::full({1}, row, grad.options().dtype(at::kLong));
  sink.add_rows(index, rows, column_sums(grad));
}

// Returns [T, 1]. One thread sums a row, so bits do not depend on the number of threads.
at::Tensor row_sums(const at::Tensor& x) {
  return x.sum(1, /*keepdim=*/true);
}

// Returns what the chosen probabilities are divided by. Sigmoids may all be nearly 0.
at::Tensor chosen_sums(const at::Tensor& chosen, const MoeSpec& moe) {
  return moe.scores == RouterScores::kSigmoid ? row_sums(chosen).add_(1e-20) : row_sums(chosen);
}

// Returns the values with minus infinity for experts of other groups; of equal groups the lowest
// are kept.
at::Tensor in_best_groups(const at::Tensor& values, const MoeSpec& moe) {
  const at::Tensor grouped = values.view({values.size(0), moe.groups, moe.experts / moe.groups});
  const at::Tensor sums = std::get<0>(at::topk(grouped, 2, 2)).sum(2);
  const at::Tensor order = std::get<1>(at::sort(sums, /*stable=*/true, 1, /*descending=*/true));
  const at::Tensor others = order.narrow(1, moe.kept_groups, moe.groups - moe.kept_groups);
  const at::Tensor left_out = at::zeros(sums.sizes(), sums.options().dtype(at::kBool));
  left_out.scatter_(1, others, true);
  return grouped.masked_fill(left_out.unsqueeze(2), -HUGE_VAL).flatten(1);
}

}  // namespace

ExpertMath::ExpertMath(const ArchSpec& arch, int64_t width)
    : width_(width),
      activation_(arch.activation),
      gated_(arch.gated),
      transposed_(arch.moe.transposed),
      interleaved_(arch.moe.interleaved),
      clamp_(arch.moe.clamp),
      gate_gain_(arch.moe.gate_gain),
      gate_up_scaling_(arch.adapter.scaling_of(Module::kExpertsGateUp)),
      down_scaling_(arch.adapter.scaling) {}

at::Tensor ExpertMath::part(UnitParameters parameters, int32_t index, int64_t row) const {
  if (index < 0) return {};
  const StoredMatrix matrix = parameters.at(static_cast<size_t>(index));
  return (row < 0 ? matrix.values() : matrix.values_of(row)).detach();
}

at::Tensor ExpertMath::gate_of(const at::Tensor& inner) const {
  if (!gated_) return {};
  return interleaved_ ? inner.slice(1, 0, 2 * width_, 2) : inner.narrow(1, 0, width_);
}

at::Tensor ExpertMath::up_of(const at::Tensor& inner) const {
  if (!gated_) return inner;
  return interleaved_ ? inner.slice(1, 1, 2 * width_, 2) : inner.narrow(1, width_, width_);
}

void ExpertMath::add_adapted(UnitParameters parameters, const ExpertPlaces::Adapter& adapter,
                             int64_t row, double scaling, const at::Tensor& in,
                             const at::Tensor& out) const {
  if (adapter.a < 0) return;
  const at::Tensor inner = at::mm(in, part(parameters, adapter.a, row).t());
  out.addmm_(inner, part(parameters, adapter.b, row).t(), /*beta=*/1.0, /*alpha=*/scaling);
}

void ExpertMath::adapter_backward(UnitParameters parameters, const ExpertPlaces::Adapter& adapter,
                                  int64_t row, double scaling, const at::Tensor& out_grad,
                                  const at::Tensor& in, const at::Tensor& in_grad,
                                  GradientSink& sink) const {
  if (adapter.a < 0) return;
  const at::Tensor a = part(parameters, adapter.a, row);
  const at::Tensor inner_grad = at::mm(out_grad, part(parameters, adapter.b, row)).mul_(scaling);
  if (sink.wants(adapter.a)) sink.add_product_at(adapter.a, row, inner_grad, in);
  if (sink.wants(adapter.b)) {
    sink.add_product_at(adapter.b, row, out_grad, at::mm(in, a.t()).mul_(scaling));
  }
  if (in_grad.defined()) in_grad.addmm_(inner_grad, a);
}

at::Tensor ExpertMath::inner(UnitParameters parameters, const ExpertPlaces& places,
                             const at::Tensor& x, const at::Tensor& gate_up) const {
  at::Tensor out = at::empty({x.size(0), (gated_ ? 2 : 1) * width_}, x.options());
  if (gate_up.defined()) {
    at::mm_out(out, x, transposed_ ? gate_up : gate_up.t());
  } else {
    at::Tensor gate = gate_of(out), up = up_of(out);
    if (gated_) at::mm_out(gate, x, part(parameters, places.gate, places.row).t());
    at::mm_out(up, x, part(parameters, places.up, places.row).t());
  }
  add_adapted(parameters, places.gate_up_adapter, places.adapter_row, gate_up_scaling_, x, out);
  if (places.gate_up_bias >= 0) out.add_(part(parameters, places.gate_up_bias, places.row));
  return out;
}

at::Tensor ExpertMath::value_of(const at::Tensor& inner) const {
  const at::Tensor gate = gate_of(inner), up = up_of(inner);
  if (clamp_ == 0.0) return activated(gate, up, activation_);
  at::Tensor value = at::empty({inner.size(0), width_}, inner.options());
  for_pieces(inner.size(0), width_, [&](int64_t begin, int64_t count) {
    const at::Tensor bound = gate.narrow(0, begin, count).to(at::kFloat).clamp_max(clamp_);
    const at::Tensor added = up.narrow(0, begin, count).to(at::kFloat).clamp(-clamp_, clamp_);
    at::Tensor product = (bound * gate_gain_).sigmoid_().mul_(bound);
    value.narrow(0, begin, count).copy_(product.mul_(added + 1.0));
  });
  return value;
}

void ExpertMath::value_backward(const at::Tensor& grad, const at::Tensor& inner) const {
  const at::Tensor all_gate = gate_of(inner), all_up = up_of(inner);
  if (clamp_ == 0.0) {
    activated_backward(grad, all_gate, all_up, activation_);
    return;
  }
  for_pieces(inner.size(0), width_, [&](int64_t begin, int64_t count) {
    const at::Tensor gate = all_gate.narrow(0, begin, count), up = all_up.narrow(0, begin, count);
    const at::Tensor upper = grad.narrow(0, begin, count).to(at::kFloat);
    const at::Tensor bound = gate.to(at::kFloat).clamp_max(clamp_);
    const at::Tensor added = up.to(at::kFloat).clamp(-clamp_, clamp_).add_(1.0);
    const at::Tensor share = (bound * gate_gain_).sigmoid_();
    // The derivative of bound * share by bound.
    const at::Tensor slope = share * (1.0 + gate_gain_ * bound * (1.0 - share));
    const at::Tensor gate_inside = gate <= clamp_, up_inside = up.abs() <= clamp_;
    up.copy_((upper * bound).mul_(share).mul_(up_inside));
    gate.copy_((upper * added).mul_(slope).mul_(gate_inside));
  });
}

at::Tensor ExpertMath::outputs(UnitParameters parameters, const ExpertPlaces& places,
                               const ExpertRows& rows) const {
  const at::Tensor value =
      value_of(inner(parameters, places, rows.x, part(parameters, places.gate_up, places.row)));
  const at::Tensor down = part(parameters, places.down, places.row);
  at::Tensor out = at::mm(value, transposed_ ? down : down.t());
  add_adapted(parameters, places.down_adapter, places.adapter_row, down_scaling_, value, out);
  if (places.down_bias >= 0) out.add_(part(parameters, places.down_bias, places.row));
  return out.to(at::kFloat).mul_(rows.weights);
}

void ExpertMath::add_matrix(GradientSink& sink, int32_t index, int64_t row,
                            const at::Tensor& out_grad, const at::Tensor& in) const {
  if (index < 0 || !sink.wants(index)) return;
  const at::Tensor& left = transposed_ ? in : out_grad;
  const at::Tensor& right = transposed_ ? out_grad : in;
  if (row < 0) {
    sink.add_product(index, left, right);
  } else {
    sink.add_product_at(index, row, left, right);
  }
}

at::Tensor ExpertMath::inner_backward(UnitParameters parameters, const ExpertPlaces& places,
                                      const at::Tensor& grad, const at::Tensor& gate_up) const {
  if (gate_up.defined()) return at::mm(grad, transposed_ ? gate_up.t() : gate_up);
  const auto times = [&](const at::Tensor& left, int32_t index) {
    return at::mm(left, part(parameters, index, places.row));
  };
  if (!gated_) return times(up_of(grad), places.up);
  at::Tensor x = times(gate_of(grad), places.gate);
  return x.addmm_(up_of(grad), part(parameters, places.up, places.row));
}

// The matrix of gate and up stays unpacked between its two products: one more time to unpack it
// would take longer than the product of a few tokens.
ExpertMath::Gradients ExpertMath::gradients(UnitParameters parameters, const ExpertPlaces& places,
                                            const ExpertRows& rows, const at::Tensor& grad,
                                            GradientSink& sink) const {
  const at::Tensor gate_up = part(parameters, places.gate_up, places.row);
  at::Tensor inner_values = inner(parameters, places, rows.x, gate_up);
  at::Tensor value = value_of(inner_values);
  at::Tensor down = part(parameters, places.down, places.row);
  // The gradient of the value before the weight; its product with the value gives the weight's.
  at::Tensor grad_value = at::mm(grad, transposed_ ? down.t() : down);
  down.reset();
  const ExpertPlaces::Adapter& of_down = places.down_adapter;
  if (of_down.a >= 0) {
    const at::Tensor inner_grad = at::mm(grad, part(parameters, of_down.b, places.adapter_row));
    grad_value.addmm_(inner_grad, part(parameters, of_down.a, places.adapter_row), 1.0,
                      down_scaling_);
  }
  Gradients result;
  result.weights = (value.to(at::kFloat) * grad_value).sum(1);
  if (places.down_bias >= 0) {
    const at::Tensor bias = part(parameters, places.down_bias, places.row).to(at::kFloat);
    result.weights.add_((grad.to(at::kFloat) * bias).sum(1));
    add_bias(sink, places.down_bias, places.row, grad.to(at::kFloat) * rows.weights);
  }
  add_matrix(sink, places.down, places.row, grad, value.mul_(rows.weights));
  adapter_backward(parameters, of_down, places.adapter_row, down_scaling_, grad, value, {}, sink);
  value.reset();
  value_backward(grad_value.mul_(rows.weights), inner_values);
  grad_value.reset();
  add_bias(sink, places.gate_up_bias, places.row, inner_values);
  if (places.gate_up >= 0) {
    add_matrix(sink, places.gate_up, places.row, inner_values, rows.x);
  } else {
    add_matrix(sink, places.gate, places.row, gate_of(inner_values), rows.x);
    add_matrix(sink, places.up, places.row, up_of(inner_values), rows.x);
  }
  result.x = inner_backward(parameters, places, inner_values, gate_up);
  adapter_backward(parameters, places.gate_up_adapter, places.adapter_row, gate_up_scaling_,
                   inner_values, rows.x, result.x, sink);
  return result;
}

Routing route(const at::Tensor& scores, const MoeSpec& moe, const at::Tensor& correction) {
  const bool over_all = moe.scores == RouterScores::kSoftmax;
  const bool sigmoid = moe.scores == RouterScores::kSigmoid;
  Routing routing;
  at::Tensor ranked = scores;
  if (over_all) ranked = routing.probabilities = at::softmax(scores, 1, at::kFloat);
  if (sigmoid) ranked = routing.probabilities = at::sigmoid(scores);
  if (moe.balance != 0.0 || moe.watched) {
    routing.of_all = over_all ? ranked : at::softmax(scores, 1, at::kFloat);
  }
  if (correction.defined()) ranked = ranked + correction;
  if (moe.kept_groups < moe.groups) ranked = in_best_groups(ranked, moe);
  // The sort is stable, unlike a top-k, which may take any of equal scores.
  const auto [values, order] = at::sort(ranked, /*stable=*/true, 1, /*descending=*/true);
  routing.experts = order.narrow(1, 0, moe.top_k).contiguous();
  at::Tensor chosen =
      sigmoid ? routing.probabilities.gather(1, routing.experts) : values.narrow(1, 0, moe.top_k);
  if (moe.scores == RouterScores::kSoftmaxOfChosen) {
    // Backward needs these unrounded: rounded weights do not sum to 1 and would let through the
    // common part of the gradients of a token's weights.
    chosen = routing.probabilities = at::softmax(chosen, 1, at::kFloat);
  } else if (moe.renormalise) {
    chosen = chosen / chosen_sums(chosen, moe);
  }
  if (moe.weight_scale != 1.0) chosen = chosen * moe.weight_scale;
  if (moe.rounded_weights) chosen = chosen.to(scores.scalar_type()).to(at::kFloat);
  routing.weights = chosen.contiguous();
  return routing;
}

at::Tensor route_backward(const at::Tensor& grad_weights, const at::Tensor& balance,
                          const Routing& routing, const MoeSpec& moe) {
  const at::Tensor& experts = routing.experts;
  const auto options = grad_weights.options();
  at::Tensor grad = at::zeros({experts.size(0), moe.experts}, options);
  if (moe.scores == RouterScores::kSoftmaxOfChosen) {
    const at::Tensor& weights = routing.probabilities;
    grad.scatter_(1, experts, weights * (grad_weights - row_sums(grad_weights * weights)));
    if (balance.defined()) {
      const at::Tensor of_each = balance.expand(grad.sizes()).contiguous();
      grad.add_(at::_softmax_backward_data(of_each, routing.of_all, 1, at::kFloat));
    }
    return grad;
  }
  at::Tensor chosen = moe.weight_scale == 1.0 ? grad_weights : grad_weights * moe.weight_scale;
  if (moe.renormalise) {
    at::Tensor weights = routing.probabilities.gather(1, experts);
    const at::Tensor sums = chosen_sums(weights, moe);
    weights.div_(sums);
    chosen = (chosen - row_sums(chosen * weights)).div_(sums);
  }
  grad.scatter_(1, experts, chosen);
  if (moe.scores == RouterScores::kSigmoid) {
    return at::sigmoid_backward(grad, routing.probabilities);
  }
  if (balance.defined()) grad.add_(balance);
  return at::_softmax_backward_data(grad, routing.probabilities, 1, at::kFloat);
}

Dispatch dispatch(const at::Tensor& experts, int64_t expert_count) {
  const at::Tensor flat = experts.reshape({-1});
  Dispatch result;
  result.pairs = std::get<1>(at::sort(flat, /*stable=*/true, 0, /*descending=*/false));
  const at::Tensor counts = at::bincount(flat, {}, expert_count).to(at::kCPU);
  result.starts = {0};
  for (int64_t expert = 0; expert < expert_count; ++expert) {
    result.starts.push_back(result.starts.back() + counts.const_data_ptr<int64_t>()[expert]);
  }
  return result;
}

}  // namespace longshore
