#include "model/mixers/mixer_passes.h"

#include <vector>

#include "model/ops/fused_ops.h"
#include "model/ops/graph_operation.h"

namespace longshore {
namespace {

using kernels::GateOrder;

at::Tensor in_dtype_of(const at::Tensor& weight, const at::Tensor& sum) {
  return sum.to(weight.scalar_type());
}

struct ConvolutionPass {
  at::Tensor x;
  fused::Convolution convolution;

  at::Tensor forward() const { return fused::causal_convolution(x, convolution); }
  std::vector<at::Tensor*> saved() {
    return {&x, &convolution.taps, &convolution.bias, &convolution.positions};
  }
  // The inputs are x, taps, bias.
  void backward(const std::vector<at::Tensor>& grads, InputGradients& gradients) const {
    const bool want_taps = gradients.wanted(1), want_bias = gradients.wanted(2);
    const fused::ConvolutionGradients own = fused::causal_convolution_backward(
        grads[0], x, convolution, gradients.wanted(0), want_taps || want_bias);
    gradients[0] = own.x;
    if (want_taps) gradients[1] = in_dtype_of(convolution.taps, own.taps);
    if (want_bias) gradients[2] = in_dtype_of(convolution.bias, own.bias);
  }
};

struct GatedNormPass {
  at::Tensor x, gate, weight;
  fused::GatedNorm norm;

  at::Tensor forward() const { return fused::gated_norm(x, gate, weight, norm); }
  std::vector<at::Tensor*> saved() { return {&x, &gate, &weight}; }
  // The inputs are x, gate, weight.
  void backward(const std::vector<at::Tensor>& grads, InputGradients& gradients) const {
    const bool want_weight = gradients.wanted(2);
    const fused::GatedNormGradients own =
        fused::gated_norm_backward(grads[0], x, gate, weight, norm, want_weight);
    gradients[0] = own.x;
    gradients[1] = own.gate;
    if (want_weight) gradients[2] = in_dtype_of(weight, own.weight);
  }
};

}  // namespace

at::Tensor causal_convolution(const at::Tensor& x, const ConvolutionWeights& weights,
                              const at::Tensor& positions) {
  const fused::Convolution convolution{.taps = weights.taps,
                                       .bias = weights.bias,
                                       .positions = positions,
                                       .activated = weights.activated};
  return run_operation(ConvolutionPass{x, convolution}, {x, weights.taps, weights.bias});
}

at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                      double eps) {
  const fused::GatedNorm norm{
      .order = GateOrder::kNormFirst, .segments = x.size(1) / weight.size(0), .eps = eps};
  return run_operation(GatedNormPass{x, gate, weight, norm}, {x, gate, weight});
}

at::Tensor norm_of_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                         int64_t groups, double eps) {
  const fused::GatedNorm norm{.order = GateOrder::kGateFirst, .segments = groups, .eps = eps};
  return run_operation(GatedNormPass{x, gate, weight, norm}, {x, gate, weight});
}

}  // namespace longshore
