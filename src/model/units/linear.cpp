#include "model/units/linear.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "device/gpu_tensors.h"
#include "model/units/differentiable_ops.h"
#include "model/units/row_products.h"

namespace longshore {
namespace {

// DoRA works on this many pieces at once, because a product of few rows is slow.
constexpr int64_t kPiecesAtOnce = 16;

// Calls body(first row, rows) for pieces of at most kPiecesAtOnce * kPieceElements.
template <typename Body>
void for_large_pieces(int64_t rows, int64_t row_elements, Body body) {
  for_pieces(rows, std::max<int64_t>(1, row_elements / kPiecesAtOnce), body);
}

// Adds row_sum(values) to `sum`, both fp32.
void add_row_sum(const at::Tensor& sum, const at::Tensor& values) {
  sum.view({1, -1}).addmm_(at::ones({1, values.size(0)}, values.options()), values);
}

// Multiplies the columns of `values` by fp32 factors into `out`, which may be `values`. It works in
// pieces, because the CPU converts bf16 in a temporary of the operands' size.
void scale_columns(const at::Tensor& out, const at::Tensor& values, const at::Tensor& factors) {
  for_large_pieces(values.size(0), values.size(1), [&](int64_t begin, int64_t rows) {
    at::Tensor target = out.narrow(0, begin, rows);
    at::mul_out(target, values.narrow(0, begin, rows), factors);
  });
}

// Returns the product inside of DoRA's factors. `x` is the one that A reads.
at::Tensor product_inside(const at::Tensor& x, const Linear& linear) {
  at::Tensor out = at::empty({x.size(0), linear.outputs()}, x.options().requires_grad(false));
  linear.multiply(out, x);
  linear.add_adapter(out, x);
  return out;
}

// Returns a table's rows inside of DoRA's factors.
at::Tensor rows_inside(const at::Tensor& ids, const Linear& linear) {
  const Lora& lora = linear.lora;
  at::Tensor rows = at::index_select(linear.weight.values(), 0, ids);
  if (lora.a.defined() && linear.by_row) {
    fused::add_row_products(rows, at::index_select(lora.a.t(), 0, ids), {.stored = lora.b},
                            /*transposed=*/false, lora.scaling);
  } else if (lora.a.defined()) {
    rows.addmm_(at::index_select(lora.a.t(), 0, ids), lora.b.t(), /*beta=*/1.0,
                /*alpha=*/lora.scaling);
  }
  return rows;
}

at::Tensor norms_of(const Linear& linear) {
  const Lora& lora = linear.lora;
  const at::Tensor weight = linear.weight.values();
  const at::Tensor wide_a = lora.a.to(at::kFloat), wide_b = lora.b.to(at::kFloat);
  const at::Tensor left = linear.transposed ? wide_a.t() : wide_b;
  const at::Tensor right = linear.transposed ? wide_b.t() : wide_a;
  at::Tensor squares = at::zeros({lora.b.size(0)}, wide_a.options());
  for_large_pieces(weight.size(0), weight.size(1), [&](int64_t begin, int64_t rows) {
    at::Tensor piece = weight.narrow(0, begin, rows).to(at::kFloat, false, /*copy=*/true);
    piece.addmm_(left.narrow(0, begin, rows), right, /*beta=*/1.0, /*alpha=*/lora.scaling)
        .square_();
    if (linear.transposed) {
      add_row_sum(squares, piece);
    } else {
      squares.narrow(0, begin, rows).copy_(piece.sum(1));
    }
  });
  // An output whose weights are all zero has the magnitude 0 and stays zero, not 0 / 0.
  return squares.sqrt_().clamp_min_(std::numeric_limits<float>::min());
}

// Sets the gradients inside of DoRA's factors from that of the output; those of A and B follow from
// them. `x` is the one that A reads. `magnitude`, if not null, becomes the magnitude's gradient.
// The result takes the memory of the product that the magnitude's gradient reads.
LinearGradients inside(const at::Tensor& grad, const at::Tensor& x, const Linear& linear,
                       at::Tensor* magnitude) {
  LinearGradients own{.product = grad};
  if (linear.lora.magnitude.defined()) {
    own.product =
        magnitude == nullptr ? at::empty(grad.sizes(), grad.options()) : product_inside(x, linear);
    if (magnitude != nullptr) *magnitude = linear.lora.magnitude_gradient(grad, own.product);
    scale_columns(own.product, grad, linear.lora.factors());
  }
  own.inner = linear.lora.inner_gradient(own.product).mul_(linear.lora.scaling);
  return own;
}

}  // namespace

at::Tensor row_sum(const at::Tensor& values) {
  return at::mm(at::ones({1, values.size(0)}, values.options()), values).view({-1});
}

at::Tensor Lora::inner_of(const at::Tensor& x) const {
  if (inner.defined()) return inner;
  return by_row ? fused::row_products(x, {.stored = a}) : at::mm(x, a.to(x.scalar_type()).t());
}

at::Tensor Lora::magnitude_gradient(const at::Tensor& grad, const at::Tensor& inside) const {
  const at::Tensor sum = at::zeros_like(norms);
  for_large_pieces(grad.size(0), grad.size(1), [&](int64_t begin, int64_t rows) {
    at::Tensor piece = inside.narrow(0, begin, rows).to(at::kFloat, false, /*copy=*/true);
    add_row_sum(sum, piece.mul_(grad.narrow(0, begin, rows)));
  });
  return sum.div_(norms);
}

void Linear::continue_rows(const MicroBatch& batch, const at::Tensor& like) {
  by_row = lora.by_row = batch.continued != nullptr && !takes_gpu_form(like);
}

Linear Linear::unpack(bool read) const {
  Linear own = *this;
  if (by_row) return own;
  own.weight = {.stored = read ? weight.values() : at::Tensor()};
  return own;
}

Linear Linear::of_matrix(int64_t matrix) const {
  Linear own = *this;
  own.weight = weight.of_matrix(matrix);
  for (at::Tensor* tensor : {&own.bias, &own.lora.a, &own.lora.b}) {
    if (tensor->defined()) *tensor = tensor->select(0, matrix);
  }
  for (ParameterPlace& one : own.places) one.matrix = matrix;
  return own;
}

Linear Linear::of_rows(const at::Tensor& rows) const {
  Linear some = *this;
  if (lora.dropout.drops()) some.lora.dropout.keys = lora.dropout.keys.index_select(0, rows);
  return some;
}

at::Tensor Linear::matrix_for(const at::Tensor& x) const {
  const at::Tensor values = weight.values().to(x.scalar_type());
  return transposed ? values : values.t();
}

void Linear::set_norms() {
  if (lora.magnitude.defined()) lora.norms = norms_of(*this);
}

void Linear::multiply(at::Tensor& out, const at::Tensor& x) const {
  if (!by_row) {
    at::mm_out(out, x, matrix_for(x));
  } else {
    out.copy_(fused::row_products(x, weight, transposed));
  }
}

void Linear::add_adapter(const at::Tensor& out, const at::Tensor& x) const {
  if (!lora.a.defined()) return;
  if (by_row) {
    fused::add_row_products(out, lora.inner_of(x), {.stored = lora.b}, /*transposed=*/false,
                            lora.scaling);
    return;
  }
  out.addmm_(lora.inner_of(x), lora.b.to(x.scalar_type()).t(), /*beta=*/1.0,
             /*alpha=*/lora.scaling);
}

at::Tensor Linear::product(const at::Tensor& x) const {
  LONGSHORE_CHECK(!by_row || !lora.dropout.drops()) << "dropout where a sequence is continued";
  if (!lora.magnitude.defined() && by_row) {
    const at::Tensor out = fused::row_products(x, weight, transposed, bias);
    add_adapter(out, x);
    return out;
  }
  if (!lora.magnitude.defined()) {
    at::Tensor out = bias.defined() ? at::addmm(bias, x, matrix_for(x)) : at::mm(x, matrix_for(x));
    if (lora.a.defined()) add_adapter(out, lora.input(x));
    return out;
  }
  const at::Tensor kept = lora.input(x);
  at::Tensor out = product_inside(kept, *this);
  scale_columns(out, out, lora.factors());
  // The magnitudes scale the product with the x that is kept; the product with the rest of x stays.
  if (lora.dropout.drops()) {
    out.addmm_(kept.sub_(x), matrix_for(x), /*beta=*/1.0, /*alpha=*/-1.0);
  }
  return bias.defined() ? out.add_(bias) : out;
}

at::Tensor Linear::input_gradient(const at::Tensor& grad) const {
  return at::mm(grad, matrix_for(grad).t());
}

void Linear::add_product(GradientSink& sink, ParameterRole role, const at::Tensor& left,
                         const at::Tensor& right) const {
  const auto [index, matrix] = place(role);
  if (matrix < 0) {
    sink.add_product(index, left, right);
  } else {
    sink.add_product_at(index, matrix, left, right);
  }
}

void Linear::add_weight_gradient(GradientSink& sink, const at::Tensor& grad,
                                 const at::Tensor& x) const {
  if (!wants(sink, ParameterRole::kWeight)) return;
  add_product(sink, ParameterRole::kWeight, transposed ? x : grad, transposed ? grad : x);
}

void Linear::add_bias_gradient(GradientSink& sink, const at::Tensor& grad) const {
  if (!wants(sink, ParameterRole::kBias)) return;
  const auto [index, matrix] = place(ParameterRole::kBias);
  if (matrix < 0) {
    sink.add(index, row_sum(grad));
  } else {
    const at::Tensor rows = at::full({1}, matrix, grad.options().dtype(at::kLong));
    sink.add_rows(index, rows, row_sum(grad).view({1, -1}));
  }
}

at::Tensor Linear::rows(const at::Tensor& ids) const {
  at::Tensor rows = rows_inside(ids, *this);
  if (lora.magnitude.defined()) scale_columns(rows, rows, lora.factors());
  return rows;
}

void Linear::add_row_gradients(GradientSink& sink, at::Tensor grad, const at::Tensor& ids) const {
  if (lora.magnitude.defined()) {
    const at::Tensor inside = rows_inside(ids, *this);
    sink.add(place(ParameterRole::kLoraMagnitude).index, lora.magnitude_gradient(grad, inside));
    scale_columns(inside, grad, lora.factors());
    grad = inside;
  }
  if (wants(sink, ParameterRole::kWeight)) {
    sink.add_rows(place(ParameterRole::kWeight).index, ids, grad);
  }
  if (!lora.a.defined()) return;
  sink.add_rows(place(ParameterRole::kLoraA).index, ids,
                lora.inner_gradient(grad).mul_(lora.scaling));
  add_product(sink, ParameterRole::kLoraB, grad,
              at::index_select(lora.a.t(), 0, ids).mul_(lora.scaling));
}

bool join_inner(const at::Tensor& x, std::span<Linear> linears) {
  std::vector<at::Tensor> joined;
  for (const Linear& one : linears) {
    if (one.lora.dropout.drops() || one.by_row) return false;
    if (one.lora.a.defined()) joined.push_back(one.lora.a);
  }
  if (joined.size() < 2) return false;
  const at::Tensor inner = at::mm(x, at::cat(joined).t());
  int64_t begin = 0;
  for (Linear& one : linears) {
    if (!one.lora.a.defined()) continue;
    one.lora.inner = inner.narrow(1, begin, one.lora.a.size(0));
    begin += one.lora.a.size(0);
  }
  return true;
}

LinearGradients LinearGradients::of(const Linear& linear, const at::Tensor& grad,
                                    const at::Tensor& x, GradientSink& sink,
                                    const at::Tensor& magnitude_sum) {
  const Lora& lora = linear.lora;
  if (!lora.a.defined()) return {.product = grad};
  const at::Tensor kept = lora.input(x);
  const bool wanted = linear.wants(sink, ParameterRole::kLoraMagnitude);
  at::Tensor magnitude;
  LinearGradients own = inside(grad, kept, linear, wanted ? &magnitude : nullptr);
  if (wanted && magnitude_sum.defined()) {
    magnitude_sum.add_(magnitude);
  } else if (wanted) {
    sink.add(linear.place(ParameterRole::kLoraMagnitude).index,
             magnitude.to(lora.magnitude.scalar_type()));
  }
  if (linear.wants(sink, ParameterRole::kLoraA)) {
    linear.add_product(sink, ParameterRole::kLoraA, own.inner, kept);
  }
  if (linear.wants(sink, ParameterRole::kLoraB)) {
    linear.add_product(sink, ParameterRole::kLoraB, own.product,
                       lora.inner_of(kept).mul(lora.scaling));
  }
  // DoRA with dropout multiplies the rest of x by W, too, with the factor 1.
  if (lora.magnitude.defined() && lora.dropout.drops()) {
    own.kept = own.product.sub_(grad);
    own.product = grad;
  }
  return own;
}

void LinearGradients::add_weight(const Linear& linear, const at::Tensor& x,
                                 GradientSink& sink) const {
  linear.add_weight_gradient(sink, product, x);
  if (kept.defined() && linear.wants(sink, ParameterRole::kWeight)) {
    linear.add_weight_gradient(sink, kept, linear.lora.input(x));
  }
}

void LinearGradients::add_to_input(const Linear& linear, const at::Tensor& sum) const {
  if (!inner.defined()) return;
  const Lora& lora = linear.lora;
  if (!lora.dropout.drops()) {
    sum.addmm_(inner, lora.a);
    return;
  }
  const at::Tensor through = at::mm(inner, lora.a);
  if (kept.defined()) through.addmm_(kept, linear.matrix_for(kept).t());
  lora.dropout.apply(through);
  sum.add_(through);
}

}  // namespace longshore
