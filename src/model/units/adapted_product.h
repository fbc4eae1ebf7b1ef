// adapted_product: the product of rows with one matrix, its adapter and its bias, and the gradients
// of the adapter. Nodes of differentiable_ops call it in forward and in backward, where autograd is
// off. Compute thread, or a thread of autograd.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <span>
#include <vector>

#include "model/ops/graph_operation.h"
#include "model/units/differentiable_ops.h"

namespace longshore {

// Adds the sum of the rows of `values` (fp32) to `sum` (fp32 [columns]). A matrix product has bits
// that do not depend on the number of threads, unlike a sum over rows.
void add_row_sum(const at::Tensor& sum, const at::Tensor& values);
at::Tensor row_sum(const at::Tensor& values);

// The adapter of one matrix, which is undefined if `a` is. Its product x A^T, [T, rank], is
// computed again in backward. With a magnitude it is DoRA: each output of W x + scaling * B A x is
// multiplied by its magnitude / norm, before the bias. The norms are constants in backward.
struct Lora {
  at::Tensor a, b, magnitude;
  double scaling = 1.0;
  at::Tensor norms = {};      // fp32 [out]; must be set before a product if there is a magnitude
  InputDropout dropout = {};  // of the x that A reads
  at::Tensor inner = {};      // x A^T, if join_inner() computed it

  // Sets all but the norms and `inner`.
  static Lora of(const LinearWeights& weights);

  // Returns the norms of the outputs of W + scaling * B A. It makes the sum in pieces, because that
  // is as large as the matrix, and in fp32, because in bf16 W would swallow a small product. It
  // takes 2 * rank operations for each element, as a product with `rank` rows of x does, and reads
  // the matrix once.
  at::Tensor norms_of(const at::Tensor& weight, bool transposed) const;
  // Returns the x that A reads; x itself without dropout.
  at::Tensor input(const at::Tensor& x) const { return dropout.drops() ? dropout.applied(x) : x; }
  // Returns x A^T for the x that A reads.
  at::Tensor inner_of(const at::Tensor& x) const {
    return inner.defined() ? inner : at::mm(x, a.t());
  }
  // Returns DoRA's factors of the outputs.
  at::Tensor factors() const { return magnitude.to(at::kFloat) / norms; }
  // Returns the adapter for the rows `rows` of those that its dropout has keys for.
  Lora of_rows(const at::Tensor& rows) const;
  // Returns the magnitude's gradient (fp32) from that of the output. `inside` is what the factors
  // multiply.
  at::Tensor magnitude_gradient(const at::Tensor& grad, const at::Tensor& inside) const;
};

// Multiplies the columns of `values` by fp32 factors into `out`, which may be `values`.
void scale_columns(const at::Tensor& out, const at::Tensor& values, const at::Tensor& factors);

// Computes x A^T of all adapters that read this x as one product, so that the wide x is read once
// and not once for each adapter, and sets their `inner`. Returns false, and does nothing, if fewer
// than two adapters are defined or they drop elements of x, each other ones.
bool join_inner(const at::Tensor& x, std::span<Lora> loras);

// Returns x times the matrix, with its adapter and bias if it has them.
at::Tensor adapted_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const Lora& lora, bool transposed);

// LoraGradients: the gradients of a matrix's products. Lives for one backward of the product.
struct LoraGradients {
  // The gradient of W x: inside of DoRA's factors, or outside of them if DoRA has dropout.
  at::Tensor product;
  at::Tensor inner;  // of the product of A; undefined without an adapter
  // The gradient of W times the x that is kept, beside that of W x; undefined unless DoRA has
  // dropout.
  at::Tensor kept = {};

  // Returns the gradients inside of DoRA's factors from that of the output; those of A and B follow
  // from them. `x` is the one that A reads. `magnitude`, if not null, becomes the magnitude's
  // gradient (fp32), which needs the product again, and one more tensor of the output's size.
  static LoraGradients inside(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              const Lora& lora, bool transposed, at::Tensor* magnitude);
  // Divides inside() between W x and W times the x that is kept, if DoRA has dropout. `grad` is
  // that of the output.
  void divide(const at::Tensor& grad, const Lora& lora);
  // Adds the gradient of W, which is the node's input `place`.
  void add_weight_gradient(InputGradients& gradients, size_t place, const at::Tensor& x,
                           const Lora& lora, bool transposed) const;
  // Adds what flows to x through the adapter to `sum`, where that of `product` is already.
  void add_to_input(const at::Tensor& sum, const at::Tensor& weight, const Lora& lora,
                    bool transposed) const;
};
// Makes the gradients of A, B and the magnitude, which are the node's inputs from `place`, where
// they are wanted. `grad` is the gradient of the output. With a magnitude it computes the product
// again, and one more tensor of the output's size exists.
LoraGradients lora_gradients(InputGradients& gradients, size_t place, const at::Tensor& grad,
                             const at::Tensor& x, const at::Tensor& weight, const Lora& lora,
                             bool transposed);

}  // namespace longshore
