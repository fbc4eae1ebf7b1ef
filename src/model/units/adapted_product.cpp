#include "model/units/adapted_product.h"

#include <algorithm>
#include <limits>

namespace longshore {
namespace {

// DoRA works on this many pieces at once, because a product of few rows is slow.
constexpr int64_t kPiecesAtOnce = 16;

// Calls body(first row, rows) for pieces of at most kPiecesAtOnce * kPieceElements.
template <typename Body>
void for_large_pieces(int64_t rows, int64_t row_elements, Body body) {
  for_pieces(rows, std::max<int64_t>(1, row_elements / kPiecesAtOnce), body);
}

at::Tensor multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    bool transposed) {
  const at::Tensor matrix = transposed ? weight : weight.t();
  return bias.defined() ? at::addmm(bias, x, matrix) : at::mm(x, matrix);
}

// Adds scaling * (x A^T) B^T. `x` is the one that A reads.
void add_adapter(const at::Tensor& out, const at::Tensor& x, const Lora& lora) {
  out.addmm_(lora.inner_of(x), lora.b.t(), /*beta=*/1.0, /*alpha=*/lora.scaling);
}

// Returns the product inside of DoRA's factors. `x` is the one that A reads.
at::Tensor product_inside(const at::Tensor& x, const at::Tensor& weight, const Lora& lora,
                          bool transposed) {
  at::Tensor out = multiply(x, weight, {}, transposed);
  add_adapter(out, x, lora);
  return out;
}

}  // namespace

// It works in pieces, because the CPU converts bf16 in a temporary of the operands' size.
void scale_columns(const at::Tensor& out, const at::Tensor& values, const at::Tensor& factors) {
  for_large_pieces(values.size(0), values.size(1), [&](int64_t begin, int64_t rows) {
    at::Tensor target = out.narrow(0, begin, rows);
    at::mul_out(target, values.narrow(0, begin, rows), factors);
  });
}

void add_row_sum(const at::Tensor& sum, const at::Tensor& values) {
  sum.view({1, -1}).addmm_(at::ones({1, values.size(0)}, values.options()), values);
}

at::Tensor row_sum(const at::Tensor& values) {
  return at::mm(at::ones({1, values.size(0)}, values.options()), values).view({-1});
}

Lora Lora::of(const LinearWeights& weights) {
  return {.a = weights.lora_a,
          .b = weights.lora_b,
          .magnitude = weights.lora_magnitude,
          .scaling = weights.lora_scaling,
          .dropout = weights.lora_dropout};
}

bool join_inner(const at::Tensor& x, std::span<Lora> loras) {
  std::vector<at::Tensor> joined;
  for (const Lora& lora : loras) {
    if (lora.dropout.drops()) return false;
    if (lora.a.defined()) joined.push_back(lora.a);
  }
  if (joined.size() < 2) return false;
  const at::Tensor inner = at::mm(x, at::cat(joined).t());
  int64_t begin = 0;
  for (Lora& lora : loras) {
    if (!lora.a.defined()) continue;
    lora.inner = inner.narrow(1, begin, lora.a.size(0));
    begin += lora.a.size(0);
  }
  return true;
}

at::Tensor Lora::norms_of(const at::Tensor& weight, bool transposed) const {
  const at::Tensor wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
  const at::Tensor left = transposed ? wide_a.t() : wide_b;
  const at::Tensor right = transposed ? wide_b.t() : wide_a;
  at::Tensor squares = at::zeros({b.size(0)}, wide_a.options());
  for_large_pieces(weight.size(0), weight.size(1), [&](int64_t begin, int64_t rows) {
    at::Tensor piece = weight.narrow(0, begin, rows).to(at::kFloat, false, /*copy=*/true);
    piece.addmm_(left.narrow(0, begin, rows), right, /*beta=*/1.0, /*alpha=*/scaling).square_();
    if (transposed) {
      add_row_sum(squares, piece);
    } else {
      squares.narrow(0, begin, rows).copy_(piece.sum(1));
    }
  });
  // An output whose weights are all zero has the magnitude 0 and stays zero, not 0 / 0.
  return squares.sqrt_().clamp_min_(std::numeric_limits<float>::min());
}

Lora Lora::of_rows(const at::Tensor& rows) const {
  Lora some = *this;
  if (dropout.drops()) some.dropout.keys = dropout.keys.index_select(0, rows);
  return some;
}

at::Tensor Lora::magnitude_gradient(const at::Tensor& grad, const at::Tensor& inside) const {
  const at::Tensor sum = at::zeros_like(norms);
  for_large_pieces(grad.size(0), grad.size(1), [&](int64_t begin, int64_t rows) {
    at::Tensor piece = inside.narrow(0, begin, rows).to(at::kFloat, false, /*copy=*/true);
    add_row_sum(sum, piece.mul_(grad.narrow(0, begin, rows)));
  });
  return sum.div_(norms);
}

at::Tensor adapted_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const Lora& lora, bool transposed) {
  if (!lora.magnitude.defined()) {
    at::Tensor out = multiply(x, weight, bias, transposed);
    if (lora.a.defined()) add_adapter(out, lora.input(x), lora);
    return out;
  }
  const at::Tensor kept = lora.input(x);
  at::Tensor out = product_inside(kept, weight, lora, transposed);
  scale_columns(out, out, lora.factors());
  // The magnitudes scale the product with the x that is kept; the product with the rest of x stays.
  if (lora.dropout.drops()) {
    const at::Tensor matrix = transposed ? weight : weight.t();
    out.addmm_(kept.sub_(x), matrix, /*beta=*/1.0, /*alpha=*/-1.0);
  }
  return bias.defined() ? out.add_(bias) : out;
}

// The result takes the memory of the product that the magnitude's gradient reads.
LoraGradients LoraGradients::inside(const at::Tensor& grad, const at::Tensor& x,
                                    const at::Tensor& weight, const Lora& lora, bool transposed,
                                    at::Tensor* magnitude) {
  LoraGradients own{grad, {}};
  if (lora.magnitude.defined()) {
    own.product = magnitude == nullptr ? at::empty(grad.sizes(), grad.options())
                                       : product_inside(x, weight, lora, transposed);
    if (magnitude != nullptr) *magnitude = lora.magnitude_gradient(grad, own.product);
    scale_columns(own.product, grad, lora.factors());
  }
  own.inner = at::mm(own.product, lora.b).mul_(lora.scaling);
  return own;
}

void LoraGradients::divide(const at::Tensor& grad, const Lora& lora) {
  if (!lora.magnitude.defined() || !lora.dropout.drops()) return;
  kept = product.sub_(grad);  // W also multiplies the rest of x, with the factor 1
  product = grad;
}

void LoraGradients::add_weight_gradient(InputGradients& gradients, size_t place,
                                        const at::Tensor& x, const Lora& lora,
                                        bool transposed) const {
  const auto add = [&](const at::Tensor& in, const at::Tensor& grad) {
    gradients.add_product(place, transposed ? in : grad, transposed ? grad : in);
  };
  add(x, product);
  if (kept.defined()) add(lora.input(x), kept);
}

void LoraGradients::add_to_input(const at::Tensor& sum, const at::Tensor& weight, const Lora& lora,
                                 bool transposed) const {
  if (!inner.defined()) return;
  if (!lora.dropout.drops()) {
    sum.addmm_(inner, lora.a);
    return;
  }
  const at::Tensor through = at::mm(inner, lora.a);
  if (kept.defined()) through.addmm_(kept, transposed ? weight.t() : weight);
  lora.dropout.apply(through);
  sum.add_(through);
}

LoraGradients lora_gradients(InputGradients& gradients, size_t place, const at::Tensor& grad,
                             const at::Tensor& x, const at::Tensor& weight, const Lora& lora,
                             bool transposed) {
  if (!lora.a.defined()) return {grad, {}};
  const at::Tensor kept = lora.input(x);
  const bool wanted = lora.magnitude.defined() && gradients.wanted(place + 2);
  at::Tensor magnitude;
  LoraGradients own =
      LoraGradients::inside(grad, kept, weight, lora, transposed, wanted ? &magnitude : nullptr);
  if (wanted) gradients[place + 2] = magnitude.to(lora.magnitude.scalar_type());
  if (gradients.wanted(place)) gradients.add_product(place, own.inner, kept);
  if (gradients.wanted(place + 1)) {
    gradients.add_product(place + 1, own.product, lora.inner_of(kept).mul(lora.scaling));
  }
  own.divide(grad, lora);
  return own;
}

}  // namespace longshore
