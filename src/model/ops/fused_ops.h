// fused_ops: src/kernels over tensors. On a GPU they run on the current CUDA stream, on the CPU on
// LibTorch's threads, whose number does not change bits. Without autograd; fp32 and bf16; any
// thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/packed_format.h"
#include "kernels/gated_norm.h"
#include "model/families/arch_spec.h"

namespace longshore::fused {

// Returns the dtype of x for kernels, which compute in fp32 and bf16 alone.
DType dtype_of(const at::Tensor& x);

// Normalises the last dimension of contiguous x. `bias` may be defined for kLayer only.
at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                NormKind kind, double eps);
// Returns the gradient of x and adds those of weight and bias to fp32 sums (undefined: skipped).
at::Tensor norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                         NormKind kind, double eps, const at::Tensor& weight_sum,
                         const at::Tensor& bias_sum);

// The rotation of heads: cosine and sine of position times frequency, each times `scale`.
struct Rotation {
  // fp32 [rotary_dim / 2], or [T, rotary_dim / 2] if each position has its own frequencies.
  at::Tensor frequencies;
  double scale = 1.0;
  bool pairs = false;  // rotates neighbours together instead of the halves
};

// Rotates the first rotary_dim values of every head of x [T, heads * head_dim], whose rows may be
// strided. `direction` is +1 or, to rotate back, -1.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const Rotation& rotation,
                  int64_t head_dim, int direction);

// Whether the operations below have this activation.
constexpr bool glu_has(Activation activation) {
  return activation == Activation::kSilu || activation == Activation::kGeluTanh;
}
// Returns activation(gate) * up, or activation(gate) if up is undefined. Both are [T, width]; rows
// may be strided.
at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, Activation activation);
// Overwrites gate and up with their gradients.
void glu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                  Activation activation);

// Writes the values of a packed matrix to contiguous `values` [rows, columns], or those of stacked
// matrices, each a row of `packed`, to [count, rows, columns]. `packed` is contiguous and holds the
// packed bytes.
void unpack(PackedFormat format, const at::Tensor& packed, const at::Tensor& values);

// Returns the losses, fp32 [rows], of logits [rows, vocabulary] and targets int64 [rows]. With
// `gradient` the gradient of scale * their sum overwrites the logits; `row_scales` (fp32 [rows], or
// undefined) are factors of the rows in that sum. `statistics` (fp32 [rows, 2], or undefined) gets
// CrossEntropy::statistics.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double scale,
                         bool gradient, const at::Tensor& row_scales = {},
                         const at::Tensor& statistics = {});

// A causal convolution of x [T, channels] (kernels/causal_convolution.h), whose rows may be
// strided.
struct Convolution {
  at::Tensor taps;       // [channels, 1, taps]
  at::Tensor bias;       // [channels], or undefined
  at::Tensor positions;  // MicroBatch::positions
  bool activated = false;
};
at::Tensor causal_convolution(const at::Tensor& x, const Convolution& convolution);

// Returns the gradients that are wanted; those of taps and bias are fp32.
struct ConvolutionGradients {
  at::Tensor x, taps, bias;
};
ConvolutionGradients causal_convolution_backward(const at::Tensor& grad, const at::Tensor& x,
                                                 const Convolution& convolution, bool want_x,
                                                 bool want_weights);

// A norm with a gate (kernels/gated_norm.h) of x [T, width], contiguous. Rows of the gate may be
// strided.
struct GatedNorm {
  kernels::GateOrder order = kernels::GateOrder::kNormFirst;
  int64_t segments = 0;  // of a row
  double eps = 0.0;
};
at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                      const GatedNorm& norm);

struct GatedNormGradients {
  at::Tensor x, gate;
  at::Tensor weight;  // fp32; undefined if it is not wanted
};
GatedNormGradients gated_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                       const at::Tensor& gate, const at::Tensor& weight,
                                       const GatedNorm& norm, bool want_weight);

}  // namespace longshore::fused
