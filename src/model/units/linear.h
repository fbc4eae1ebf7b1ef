// Linear: a matrix of any storage with its bias and its adapter, the product of rows with them, and
// the gradients of that product. Units make one where they need a product (ModuleIndex::linear);
// the nodes of differentiable_ops hold them from forward to backward. The functions run without
// autograd. Plain value; compute thread, or a thread of autograd.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/parameters/unit_parameters.h"
#include "model/units/input_dropout.h"
#include "model/units/stored_parameters.h"
#include "model/units/unit.h"

namespace longshore {

// Returns the sum of the rows of `values`. It is a matrix product, whose bits do not depend on the
// number of threads, unlike those of a sum over rows.
at::Tensor row_sum(const at::Tensor& values);

// The adapter of a matrix (AdapterSpec): scaling * (x A^T) B^T is added to the product. With a
// magnitude (DoRA) this sum is multiplied, before the bias, by magnitude / norm of W + scaling * B
// A for each output; the norms are constants in backward. With dropout A reads the x that is kept,
// and with a magnitude too the output is, as PEFT computes it, W x plus the bias plus what the
// adapter changes at the x that is kept. x A^T, [T, rank], is computed again in backward.
struct Lora {
  at::Tensor a = {};          // [rank, in], or undefined: no adapter
  at::Tensor b = {};          // [out, rank]
  at::Tensor magnitude = {};  // [out], or undefined
  double scaling = 1.0;
  InputDropout dropout = {};  // of the x that A reads
  at::Tensor norms = {};      // fp32 [out]; must be set before a product if there is a magnitude
  at::Tensor inner = {};      // x A^T, if join_inner() computed it
  bool by_row = false;        // Linear::by_row

  // Returns the x that A reads; x itself without dropout.
  at::Tensor input(const at::Tensor& x) const { return dropout.drops() ? dropout.applied(x) : x; }
  // Returns x A^T for the x that A reads.
  at::Tensor inner_of(const at::Tensor& x) const;
  // Returns the gradient of x A^T from that of the product, without the scaling.
  at::Tensor inner_gradient(const at::Tensor& grad) const {
    return at::mm(grad, b.to(grad.scalar_type()));
  }
  // Returns DoRA's factors of the outputs.
  at::Tensor factors() const { return magnitude.to(at::kFloat) / norms; }
  // Returns the magnitude's gradient (fp32) from that of the output. `inside` is what the factors
  // multiply.
  at::Tensor magnitude_gradient(const at::Tensor& grad, const at::Tensor& inside) const;
};

// Where a GradientSink has a parameter.
struct ParameterPlace {
  int32_t index = -1;   // -1: nowhere
  int64_t matrix = -1;  // of a stacked parameter; -1: it is not stacked
};

struct Linear {
  StoredMatrix weight = {};  // in the file's shape; unpacked for each product, and freed after it
  at::Tensor bias = {};      // undefined: none
  Lora lora = {};
  bool transposed = false;  // the matrix is [in, out], else [out, in]
  // Decoding on the CPU: the bits of a row of a product do not depend on the other rows, and a
  // packed matrix is never unpacked as a whole (ops/row_products.h). Without gradients.
  bool by_row = false;
  std::array<ParameterPlace, kRoleCount> places = {};

  ParameterPlace& place(ParameterRole role) { return places[static_cast<size_t>(role)]; }
  const ParameterPlace& place(ParameterRole role) const {
    return places[static_cast<size_t>(role)];
  }
  int64_t outputs() const { return weight.size(transposed ? 1 : 0); }
  // Returns the values as [in, out], in the type of `x`.
  at::Tensor matrix_for(const at::Tensor& x) const;
  // Sets by_row for a batch that continues sequences on the CPU. `like` is a tensor of the device.
  void continue_rows(const MicroBatch& batch, const at::Tensor& like);
  // Returns a copy that holds the unpacked values, or none if nothing will read them. By row it
  // stays as it is.
  Linear unpack(bool read = true) const;
  // Returns one matrix of a stack, with its bias and adapter.
  Linear of_matrix(int64_t matrix) const;
  // Returns a copy for these rows of x alone: its dropout has their keys.
  Linear of_rows(const at::Tensor& rows) const;
  // Sets the norms of the outputs of W + scaling * B A if there is a magnitude. It makes the sum in
  // pieces, because that is as large as the matrix, and in fp32, because in bf16 W would swallow a
  // small product. It takes 2 * rank operations for each element, as a product with `rank` rows of
  // x does, and reads the matrix once.
  void set_norms();

  // Returns x times the matrix, with its adapter and bias if it has them. A matrix and an adapter
  // of another type are converted to that of x.
  at::Tensor product(const at::Tensor& x) const;
  // Writes x times the matrix alone to `out`.
  void multiply(at::Tensor& out, const at::Tensor& x) const;
  // Adds scaling * (x A^T) B^T to `out` if there is an adapter. `x` is the one that A reads.
  void add_adapter(const at::Tensor& out, const at::Tensor& x) const;
  // Returns the gradient of x through the matrix alone, from that of W x.
  at::Tensor input_gradient(const at::Tensor& grad) const;

  // The functions below compute only the gradients that the sink wants.
  bool wants(const GradientSink& sink, ParameterRole role) const {
    return place(role).index >= 0 && sink.wants(place(role).index);
  }
  // Adds left^T right to the gradient of a parameter.
  void add_product(GradientSink& sink, ParameterRole role, const at::Tensor& left,
                   const at::Tensor& right) const;
  // Adds the gradient of W from that of W x.
  void add_weight_gradient(GradientSink& sink, const at::Tensor& grad, const at::Tensor& x) const;
  void add_bias_gradient(GradientSink& sink, const at::Tensor& grad) const;

  // Returns the rows of `ids` of a table, [in, out], whose inputs are tokens, with their adapter.
  at::Tensor rows(const at::Tensor& ids) const;
  // Gives the gradients of the table, if the sink wants it, and of the adapter from that of rows(),
  // row by row. It reads the table only if there is a magnitude.
  void add_row_gradients(GradientSink& sink, at::Tensor grad, const at::Tensor& ids) const;
};

// Computes x A^T of all adapters that read this x as one product, so that the wide x is read once
// and not once for each adapter, and sets their `inner`. Returns false, and does nothing, if fewer
// than two adapters are defined, if they drop elements of x, each other ones, or if they compute by
// row.
bool join_inner(const at::Tensor& x, std::span<Linear> linears);

// LinearGradients: the gradients inside of a product. Lives for one backward of the product. With a
// magnitude each function reads the matrix, so a packed one is unpacked first (Linear::unpack).
struct LinearGradients {
  // The gradient of W x: inside of DoRA's factors, or outside of them if DoRA has dropout.
  at::Tensor product;
  at::Tensor inner = {};  // of the product of A; undefined without an adapter
  // The gradient of W times the x that is kept, beside that of W x; undefined unless DoRA has
  // dropout.
  at::Tensor kept = {};

  // `grad` is the gradient of the output. Gives the gradients of A, B and the magnitude to the
  // sink. That of a magnitude needs the product again, and one more tensor of the output's size;
  // it is added to `magnitude_sum`, fp32, if that is defined.
  static LinearGradients of(const Linear& linear, const at::Tensor& grad, const at::Tensor& x,
                            GradientSink& sink, const at::Tensor& magnitude_sum = {});
  // Gives the gradient of W.
  void add_weight(const Linear& linear, const at::Tensor& x, GradientSink& sink) const;
  // Adds what flows to x through the adapter to `sum`, where that of `product` is already.
  void add_to_input(const Linear& linear, const at::Tensor& sum) const;
};

}  // namespace longshore
