#include "model/decoder/expert_math.h"

#include <cmath>
#include <utility>

#include "model/units/differentiable_ops.h"
#include "model/units/row_products.h"

namespace longshore {
namespace {

// Gives the gradients of A and B, and adds what flows to `in` through them to `in_grad` if it is
// defined. LinearGradients would need one more tensor of the rank's width in the pass that decides
// how much memory the experts need.
void adapter_backward(const Linear& linear, const at::Tensor& out_grad, const at::Tensor& in,
                      const at::Tensor& in_grad, GradientSink& sink) {
  const Lora& lora = linear.lora;
  if (!lora.a.defined()) return;
  const at::Tensor inner_grad = lora.inner_gradient(out_grad).mul_(lora.scaling);
  if (linear.wants(sink, ParameterRole::kLoraA)) {
    linear.add_product(sink, ParameterRole::kLoraA, inner_grad, in);
  }
  if (linear.wants(sink, ParameterRole::kLoraB)) {
    linear.add_product(sink, ParameterRole::kLoraB, out_grad, lora.inner_of(in).mul_(lora.scaling));
  }
  if (in_grad.defined()) in_grad.addmm_(inner_grad, lora.a);
}

// Adds the adapter and the bias, if there are any, to the matrix's product with x.
at::Tensor completed(const at::Tensor& out, const Linear& linear, const at::Tensor& x) {
  linear.add_adapter(out, x);
  return linear.bias.defined() ? out.add_(linear.bias) : out;
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
      interleaved_(arch.moe.interleaved),
      clamp_(arch.moe.clamp),
      gate_gain_(arch.moe.gate_gain) {}

at::Tensor ExpertMath::gate_of(const at::Tensor& inner) const {
  if (!gated_) return {};
  return interleaved_ ? inner.slice(1, 0, 2 * width_, 2) : inner.narrow(1, 0, width_);
}

at::Tensor ExpertMath::up_of(const at::Tensor& inner) const {
  if (!gated_) return inner;
  return interleaved_ ? inner.slice(1, 1, 2 * width_, 2) : inner.narrow(1, width_, width_);
}

at::Tensor ExpertMath::inner(const Expert& expert, const Linear& gate_up,
                             const at::Tensor& x) const {
  at::Tensor out = at::empty({x.size(0), (gated_ ? 2 : 1) * width_}, x.options());
  if (gate_up.weight.defined()) {
    gate_up.multiply(out, x);
  } else {
    at::Tensor gate = gate_of(out), up = up_of(out);
    if (gated_) expert.gate.multiply(gate, x);
    expert.up.multiply(up, x);
  }
  return completed(out, gate_up, x);
}

at::Tensor ExpertMath::value_of(const at::Tensor& inner, bool by_row) const {
  const at::Tensor gate = gate_of(inner), up = up_of(inner);
  if (clamp_ == 0.0) return activated(gate, up, activation_, by_row);
  at::Tensor value = at::empty({inner.size(0), width_}, inner.options());
  for_pieces(inner.size(0), width_, [&](int64_t begin, int64_t count) {
    const at::Tensor bound = gate.narrow(0, begin, count).to(at::kFloat).clamp_max(clamp_);
    const at::Tensor added = up.narrow(0, begin, count).to(at::kFloat).clamp(-clamp_, clamp_);
    at::Tensor product = sigmoid(bound * gate_gain_, by_row).mul_(bound);
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

at::Tensor ExpertMath::outputs(const Expert& expert, const ExpertRows& rows) const {
  const at::Tensor value =
      value_of(inner(expert, expert.gate_up.unpack(), rows.x), expert.down.by_row);
  const Linear down = expert.down.unpack();
  at::Tensor out = at::empty({value.size(0), down.outputs()}, value.options());
  down.multiply(out, value);
  return completed(out, down, value).to(at::kFloat).mul_(rows.weights);
}

at::Tensor ExpertMath::inner_backward(const Expert& expert, const Linear& gate_up,
                                      const at::Tensor& grad) const {
  if (gate_up.weight.defined()) return gate_up.input_gradient(grad);
  if (!gated_) return expert.up.input_gradient(up_of(grad));
  at::Tensor x = expert.gate.input_gradient(gate_of(grad));
  return x.addmm_(up_of(grad), expert.up.matrix_for(x).t());
}

// The matrix of gate and up stays unpacked between its two products: one more time to unpack it
// would take longer than the product of a few tokens.
ExpertMath::Gradients ExpertMath::gradients(const Expert& expert, const ExpertRows& rows,
                                            const at::Tensor& grad, GradientSink& sink) const {
  const Linear gate_up = expert.gate_up.unpack();
  const Linear& down = expert.down;
  at::Tensor inner_values = inner(expert, gate_up, rows.x);
  at::Tensor value = value_of(inner_values, /*by_row=*/false);
  // The gradient of the value before the weight; its product with the value gives the weight's.
  at::Tensor grad_value = down.input_gradient(grad);
  if (down.lora.a.defined()) {
    grad_value.addmm_(down.lora.inner_gradient(grad), down.lora.a, 1.0, down.lora.scaling);
  }
  Gradients result;
  result.weights = (value.to(at::kFloat) * grad_value).sum(1);
  if (down.bias.defined()) {
    const at::Tensor bias = down.bias.to(at::kFloat);
    result.weights.add_((grad.to(at::kFloat) * bias).sum(1));
    down.add_bias_gradient(sink, grad.to(at::kFloat) * rows.weights);
  }
  down.add_weight_gradient(sink, grad, value.mul_(rows.weights));
  adapter_backward(down, grad, value, {}, sink);
  value.reset();
  value_backward(grad_value.mul_(rows.weights), inner_values);
  grad_value.reset();
  if (gate_up.wants(sink, ParameterRole::kBias)) {
    gate_up.add_bias_gradient(sink, inner_values.to(at::kFloat));
  }
  if (gate_up.weight.defined()) {
    gate_up.add_weight_gradient(sink, inner_values, rows.x);
  } else {
    expert.gate.add_weight_gradient(sink, gate_of(inner_values), rows.x);
    expert.up.add_weight_gradient(sink, up_of(inner_values), rows.x);
  }
  result.x = inner_backward(expert, gate_up, inner_values);
  adapter_backward(gate_up, inner_values, rows.x, result.x, sink);
  return result;
}

at::Tensor sigmoid(const at::Tensor& x, bool by_row) {
  if (!by_row) return at::sigmoid(x);
  return fused::each_row(x, [](const at::Tensor& row) { return at::sigmoid(row); });
}

Routing route(const at::Tensor& scores, const MoeSpec& moe, const at::Tensor& correction,
              bool by_row) {
  const bool over_all = moe.scores == RouterScores::kSoftmax;
  const bool sigmoid = moe.scores == RouterScores::kSigmoid;
  Routing routing;
  at::Tensor ranked = scores;
  if (over_all) ranked = routing.probabilities = at::softmax(scores, 1, at::kFloat);
  if (sigmoid) ranked = routing.probabilities = longshore::sigmoid(scores, by_row);
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
