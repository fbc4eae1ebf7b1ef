// Differentiable ops: the pieces of a decoder block, each with a backward of its own that keeps
// little and frees early. They work with autograd (recompute and recompute = "none") and without.
// A graph made of them runs backward once: backward overwrites what it saved.
//
// Work over many rows goes in pieces of a size that depends on the row's width alone, so that
// temporaries are bounded and bits do not depend on the number of rows. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/arch_spec.h"
#include "model/document_attention.h"

namespace longshore {

// fp32 values in one temporary of a piece of rows.
inline constexpr int64_t kPieceElements = int64_t{1} << 18;
constexpr int64_t piece_rows(int64_t row_elements) {
  return row_elements >= kPieceElements ? 1 : kPieceElements / row_elements;
}

// Calls body(first row, rows) for every piece of a matrix with `rows` rows.
template <typename Body>
void for_pieces(int64_t rows, int64_t row_elements, Body body) {
  const int64_t most = piece_rows(row_elements);
  for (int64_t begin = 0; begin < rows; begin += most) {
    body(begin, std::min(most, rows - begin));
  }
}

// A matrix in the file's form, and its bias (undefined: none).
struct LinearWeights {
  at::Tensor weight;
  at::Tensor bias;
};

// Normalises the last dimension. `bias` is undefined for kRms. Saves x.
at::Tensor normalise(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     NormKind kind, double eps);

// What the last dimension is normalised by; an undefined weight: it is not. `bias` is undefined
// for kRms.
struct NormWeights {
  at::Tensor weight;
  at::Tensor bias;
  NormKind kind = NormKind::kRms;
  double eps = 0.0;
};

// Whether anybody reads the values of an operation's result. Where nobody does, the result has the
// shape, dtype and graph of the operation but one element of memory, and nothing is computed.
// Backward of these operations never looks at their results, so gradients have the same bits.
enum class Values { kComputed, kUnread };

// x [T, in], normalised, times each matrix, plus its bias; `transposed`: matrices are [in, out],
// else [out, in]. Saves x alone: backward normalises it again.
std::vector<at::Tensor> linear_group(const at::Tensor& x, const NormWeights& norm,
                                     std::span<const LinearWeights> weights, bool transposed,
                                     Values values = Values::kComputed);

// How heads turn: cosine and sine of position times frequency, times `scale`.
struct Rotation {
  // fp32 [rotary_dim / 2], or [T, rotary_dim / 2] where positions have frequencies of their own.
  at::Tensor frequencies;
  double scale = 1.0;
  bool pairs = false;  // neighbours turn together, not the halves
};

// Rotates the two halves, or the pairs, of the first rotary_dim values of every head of
// x [T, heads * head_dim]; the rest of a head stays. positions: int64 [T]. Saves nothing of x.
at::Tensor rotate_heads(const at::Tensor& x, const at::Tensor& positions, const Rotation& rotation,
                        int64_t head_dim);

// Causal attention within each document. q [T, heads * head_dim]; k, v [T, kv_heads * head_dim],
// rows may be strided; `sinks` [heads], or undefined. Saves q, k, v, the result and one fp32 per
// head and position.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionShape& shape, const std::vector<int64_t>& document_starts,
                  const at::Tensor& sinks = {});

// (activation(gate) * up) times `down`; an undefined gate: activation(up) times `down`.
// Saves gate and up, which backward overwrites.
at::Tensor activate_and_project(const at::Tensor& gate, const at::Tensor& up,
                                const LinearWeights& down, Activation activation, bool transposed,
                                Values values = Values::kComputed);

// The graph of x + scale * branch, both [T, width], without its values (Values::kUnread).
at::Tensor residual_graph(const at::Tensor& x, const at::Tensor& branch, double scale);

// Used by units that compute their gradients themselves.
// activation(gate) * up; an undefined gate: activation(up).
at::Tensor activated(const at::Tensor& gate, const at::Tensor& up, Activation activation);
// Overwrites gate and up with their gradients. `grad` is that of what activated() gives.
void activated_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                        Activation activation);
// The gradient of x, and of weight and bias
// added to fp32 sums (undefined: not wanted).
at::Tensor normalise_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              NormKind kind, double eps, const at::Tensor& weight_sum,
                              const at::Tensor& bias_sum);

}  // namespace longshore
