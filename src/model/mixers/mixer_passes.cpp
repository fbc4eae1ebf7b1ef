#include "model/mixers/mixer_passes.h"

#include <torch/csrc/autograd/custom_function.h>

#include "model/ops/fused_ops.h"

namespace longshore {
namespace {

using kernels::GateOrder;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor in_dtype_of(const at::Tensor& weight, const at::Tensor& sum) {
  return sum.to(weight.scalar_type());
}

// `weights` holds the taps, then the bias if there is one.
struct ConvolutionFunction : Function<ConvolutionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& positions,
                            at::TensorList weights, bool activated) {
    variable_list saved{x, positions};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["activated"] = activated;
    return fused::causal_convolution(x, convolution(saved, activated));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::NoGradGuard no_grad;
    const bool biased = saved.size() > 3;
    const bool want_taps = ctx->needs_input_grad(2);
    const bool want_bias = biased && ctx->needs_input_grad(3);
    const fused::ConvolutionGradients gradients = fused::causal_convolution_backward(
        grads[0], saved[0], convolution(saved, ctx->saved_data["activated"].toBool()),
        ctx->needs_input_grad(0), want_taps || want_bias);
    variable_list result(saved.size() + 1);
    result[0] = gradients.x;
    if (want_taps) result[2] = in_dtype_of(saved[2], gradients.taps);
    if (want_bias) result[3] = in_dtype_of(saved[3], gradients.bias);
    return result;
  }

  static fused::Convolution convolution(const variable_list& saved, bool activated) {
    return {.taps = saved[2],
            .bias = saved.size() > 3 ? saved[3] : at::Tensor(),
            .positions = saved[1],
            .activated = activated};
  }
};

struct GatedNormFunction : Function<GatedNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate,
                            const at::Tensor& weight, bool gate_first, int64_t segments,
                            double eps) {
    ctx->save_for_backward({x, gate, weight});
    ctx->saved_data["gate_first"] = gate_first;
    ctx->saved_data["segments"] = segments;
    ctx->saved_data["eps"] = eps;
    return fused::gated_norm(x, gate, weight, norm(ctx));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::NoGradGuard no_grad;
    const at::Tensor& weight = saved[2];
    const bool want_weight = ctx->needs_input_grad(2);
    const fused::GatedNormGradients gradients =
        fused::gated_norm_backward(grads[0], saved[0], saved[1], weight, norm(ctx), want_weight);
    variable_list result(6);
    result[0] = gradients.x;
    result[1] = gradients.gate;
    if (want_weight) result[2] = in_dtype_of(weight, gradients.weight);
    return result;
  }

  static fused::GatedNorm norm(AutogradContext* ctx) {
    return {.order = ctx->saved_data["gate_first"].toBool() ? GateOrder::kGateFirst
                                                            : GateOrder::kNormFirst,
            .segments = ctx->saved_data["segments"].toInt(),
            .eps = ctx->saved_data["eps"].toDouble()};
  }
};

}  // namespace

at::Tensor causal_convolution(const at::Tensor& x, const ConvolutionWeights& weights,
                              const at::Tensor& positions) {
  variable_list list{weights.taps};
  if (weights.bias.defined()) list.push_back(weights.bias);
  return ConvolutionFunction::apply(x, positions, at::TensorList(list), weights.activated);
}

at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                      double eps) {
  const int64_t heads = x.size(1) / weight.size(0);
  return GatedNormFunction::apply(x, gate, weight, /*gate_first=*/false, heads, eps);
}

at::Tensor norm_of_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                         int64_t groups, double eps) {
  return GatedNormFunction::apply(x, gate, weight, /*gate_first=*/true, groups, eps);
}

}  // namespace longshore
