// differentiable_ops: the operations of a decoder block. Each has its own backward, which saves
// little and frees early; they run with or without autograd. A graph of them runs backward once,
// because backward overwrites saved tensors.
//
// Work over many rows runs in pieces whose size depends only on the row's width: temporaries are
// bounded and bits do not depend on the number of rows. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/attention/document_attention.h"
#include "model/families/arch_spec.h"
#include "model/units/linear.h"
#include "model/units/unit.h"

namespace longshore {

// The fp32 values in one temporary of a piece of rows.
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

// Normalises the last dimension. `bias` may be defined for kLayer only. Of activations it saves x.
at::Tensor normalise(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     NormKind kind, double eps);

// Parameters of a norm over the last dimension; an undefined weight means no norm. `bias` may be
// defined for kLayer only.
struct NormWeights {
  at::Tensor weight;
  at::Tensor bias;
  NormKind kind = NormKind::kRms;
  double eps = 0.0;
};

// NormGradients: the gradients of a norm's parameters that a sink wants, summed in fp32 over all
// calls of backward(). Made and used within one backward of a unit or a node.
struct NormGradients {
  // The places are those of the parameters in the sink; -1: the norm lacks the parameter.
  NormGradients(NormWeights of, int32_t weight_place, int32_t bias_place, const GradientSink& sink);
  bool wanted() const { return weight.defined() || bias.defined(); }
  // Returns the gradient of x, given that of norm(x).
  at::Tensor backward(const at::Tensor& grad, const at::Tensor& x) const;
  void add_to(GradientSink& sink) const;

  NormWeights norm;
  std::array<int32_t, 2> places;
  at::Tensor weight, bias;  // undefined: not wanted
};

// Whether an operation's values are read. With kUnread the result has the operation's shape, dtype
// and graph but one element of memory, and nothing is computed. Backward of these operations does
// not read their results, so gradients have the same bits.
enum class Values { kComputed, kUnread };

// Returns the products of norm(x) [T, in]. Of activations it saves x alone; backward recomputes the
// norm. A packed matrix is unpacked just before its products, in forward and in backward, and freed
// after them.
std::vector<at::Tensor> linear_group(const at::Tensor& x, const NormWeights& norm,
                                     std::span<const Linear> linears,
                                     Values values = Values::kComputed);

// Causal attention within each document. q is [T, heads * head_dim]; k and v are [T, kv_heads *
// head_dim]; rows may be strided; `sinks` is [heads] or undefined. Saves q, k, v, the result and,
// unless scores are capped, one fp32 per head and position. The result goes to `place` if that has
// memory, or comes from there if it is filled; then no attention is computed.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionShape& shape, const std::vector<int64_t>& document_starts,
                  const at::Tensor& sinks, const AttentionPlace& place);

// Returns (activation(gate) * up) times `down`, or activation(up) times `down` if gate is
// undefined. Saves gate and up, which backward overwrites.
at::Tensor activate_and_project(const at::Tensor& gate, const at::Tensor& up, const Linear& down,
                                Activation activation, Values values = Values::kComputed);

// Returns x, a result that a plan may keep. Puts it into `place` if that is defined; or, if the
// place is filled, returns the values that are there with the graph of x, whose own values are not
// read (Values::kUnread).
at::Tensor kept_result(const at::Tensor& x, const at::Tensor& place, bool filled);

// Returns the graph of factor * (x + scale * branch), x and branch [T, width], without values
// (Values::kUnread). `factor` [1] has no gradient; undefined means 1.
at::Tensor residual_graph(const at::Tensor& x, const at::Tensor& branch, double scale,
                          const at::Tensor& factor = {});

// Units with their own backward use the functions below. Returns activation(gate) * up, or
// activation(up) if gate is undefined. By row the bits of a row do not depend on the others.
at::Tensor activated(const at::Tensor& gate, const at::Tensor& up, Activation activation,
                     bool by_row = false);
// Overwrites gate and up with their gradients. `grad` is the gradient of activated()'s result.
void activated_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                        Activation activation);

}  // namespace longshore
