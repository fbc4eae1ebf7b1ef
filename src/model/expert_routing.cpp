#include "model/expert_routing.h"

namespace longshore {
namespace {

// Returns [T, 1]. One thread sums a row, so bits do not depend on the number of threads.
at::Tensor row_sums(const at::Tensor& x) {
  return x.sum(1, /*keepdim=*/true);
}

}  // namespace

Routing route(const at::Tensor& scores, const MoeSpec& moe) {
  Routing routing;
  at::Tensor ranked = scores;
  if (moe.softmax_over_all) {
    ranked = routing.probabilities = at::softmax(scores, 1, at::kFloat);
  }
  if (moe.balance != 0.0 || moe.watched) {
    routing.of_all = moe.softmax_over_all ? ranked : at::softmax(scores, 1, at::kFloat);
  }
  // The sort is stable, unlike a top-k, which may take any of equal scores.
  const auto [values, order] = at::sort(ranked, /*stable=*/true, 1, /*descending=*/true);
  routing.experts = order.narrow(1, 0, moe.top_k).contiguous();
  at::Tensor chosen = values.narrow(1, 0, moe.top_k);
  if (!moe.softmax_over_all) {
    // Backward needs these unrounded: rounded weights do not sum to 1 and would let through the
    // common part of the gradients of a token's weights.
    chosen = routing.probabilities = at::softmax(chosen, 1, at::kFloat);
  } else if (moe.renormalise) {
    chosen = chosen / row_sums(chosen);
  }
  if (moe.rounded_weights) chosen = chosen.to(scores.scalar_type()).to(at::kFloat);
  routing.weights = chosen.contiguous();
  return routing;
}

at::Tensor route_backward(const at::Tensor& grad_weights, const at::Tensor& balance,
                          const Routing& routing, const MoeSpec& moe) {
  const at::Tensor& experts = routing.experts;
  const auto options = grad_weights.options();
  at::Tensor grad = at::zeros({experts.size(0), moe.experts}, options);
  if (!moe.softmax_over_all) {
    const at::Tensor& weights = routing.probabilities;
    grad.scatter_(1, experts, weights * (grad_weights - row_sums(grad_weights * weights)));
    if (balance.defined()) {
      const at::Tensor of_each = balance.expand(grad.sizes()).contiguous();
      grad.add_(at::_softmax_backward_data(of_each, routing.of_all, 1, at::kFloat));
    }
    return grad;
  }
  at::Tensor chosen = grad_weights;
  if (moe.renormalise) {
    at::Tensor weights = routing.probabilities.gather(1, experts);
    const at::Tensor sums = row_sums(weights);
    weights.div_(sums);
    chosen = (grad_weights - row_sums(grad_weights * weights)).div_(sums);
  }
  grad.scatter_(1, experts, chosen);
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
