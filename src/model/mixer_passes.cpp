#include "model/mixer_passes.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "device/gpu_tensors.h"
#include "model/adapted_product.h"
#include "model/differentiable_ops.h"

namespace longshore {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Calls body(first row, rows). A GPU runs pieces sixteen times as large, because each has a cost.
template <typename Body>
void for_row_pieces(const at::Tensor& x, Body body) {
  constexpr int64_t kGpuPieces = 16;
  const int64_t width = x.size(1);
  for_pieces(x.size(0), on_gpu(x) ? std::max<int64_t>(1, width / kGpuPieces) : width, body);
}

// The convolution of some rows. Weights are fp32 [taps, channels], the bias fp32 [channels].
struct Taps {
  at::Tensor weights, bias, positions;

  Taps(const at::Tensor& weight, const at::Tensor& offset, const at::Tensor& of)
      : weights(weight.detach().squeeze(1).t().to(at::kFloat).contiguous()), positions(of) {
    if (offset.defined()) bias = offset.detach().to(at::kFloat);
  }
  int64_t count() const { return weights.size(0); }
  at::Tensor weight(int64_t distance) const { return weights[count() - 1 - distance]; }

  // Returns values of rows that must be zeroed: those of tokens with fewer tokens before them.
  at::Tensor outside(int64_t begin, int64_t rows, int64_t distance) const {
    return (positions.narrow(0, begin, rows) < distance).unsqueeze(1);
  }
  // Returns x `distance` rows earlier, fp32, for rows from `begin` on.
  at::Tensor earlier(const at::Tensor& x, int64_t begin, int64_t rows, int64_t distance) const {
    at::Tensor values = x.narrow(0, begin - distance, rows).to(at::kFloat, false, /*copy=*/true);
    return values.masked_fill_(outside(begin, rows, distance), 0.0);
  }
  // Returns the convolution before its activation, in the dtype of x.
  at::Tensor apply(const at::Tensor& x, int64_t begin, int64_t rows) const {
    at::Tensor sum = x.narrow(0, begin, rows).to(at::kFloat) * weight(0);
    for (int64_t distance = 1; distance < count(); ++distance) {
      const int64_t skipped = std::max<int64_t>(0, distance - begin);
      if (skipped >= rows) break;
      const at::Tensor part = earlier(x, begin + skipped, rows - skipped, distance);
      sum.narrow(0, skipped, rows - skipped).addcmul_(part, weight(distance));
    }
    if (bias.defined()) sum.add_(bias);
    return sum.to(x.scalar_type());
  }
};

// `weights` holds the taps, then the bias if there is one.
struct ConvolutionFunction : Function<ConvolutionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& positions,
                            at::TensorList weights, bool activated) {
    variable_list saved{x, positions};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["activated"] = activated;
    const Taps taps(weights[0], weights.size() > 1 ? weights[1] : at::Tensor(), positions);
    at::Tensor out = at::empty(x.sizes(), x.options());
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      at::Tensor target = out.narrow(0, begin, rows);
      const at::Tensor values = taps.apply(x, begin, rows);
      if (activated) {
        at::silu_out(target, values);
      } else {
        target.copy_(values);
      }
    });
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::NoGradGuard no_grad;
    const at::Tensor x = saved[0].detach();
    const bool biased = saved.size() > 3;
    const Taps taps(saved[2], biased ? saved[3] : at::Tensor(), saved[1]);
    const at::Tensor inner = ctx->saved_data["activated"].toBool()
                                 ? before_activation(taps, x, grads[0])
                                 : grads[0].contiguous();
    variable_list result(saved.size() + 1);
    if (ctx->needs_input_grad(2)) {
      result[2] = taps_gradient(taps, x, inner).to(saved[2].scalar_type());
    }
    if (biased && ctx->needs_input_grad(3)) {
      const at::Tensor sum = at::zeros_like(taps.bias);
      for_row_pieces(x, [&](int64_t begin, int64_t rows) {
        add_row_sum(sum, inner.narrow(0, begin, rows).to(at::kFloat));
      });
      result[3] = sum.to(saved[3].scalar_type());
    }
    if (ctx->needs_input_grad(0)) result[0] = input_gradient(taps, x, inner);
    return result;
  }

  // Returns the gradient of the sums from that of their silu.
  static at::Tensor before_activation(const Taps& taps, const at::Tensor& x,
                                      const at::Tensor& grad) {
    at::Tensor inner = at::empty(x.sizes(), x.options());
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      at::Tensor target = inner.narrow(0, begin, rows);
      at::silu_backward_out(target, grad.narrow(0, begin, rows), taps.apply(x, begin, rows));
    });
    return inner;
  }

  static at::Tensor input_gradient(const Taps& taps, const at::Tensor& x, const at::Tensor& inner) {
    const at::Tensor gradient = at::empty(x.sizes(), x.options());
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      at::Tensor sum = inner.narrow(0, begin, rows).to(at::kFloat) * taps.weight(0);
      for (int64_t distance = 1; distance < taps.count(); ++distance) {
        const int64_t later = begin + distance;
        const int64_t count = std::min(rows, x.size(0) - later);
        if (count <= 0) break;
        at::Tensor part = inner.narrow(0, later, count).to(at::kFloat, false, /*copy=*/true);
        part.masked_fill_(taps.outside(later, count, distance), 0.0);
        sum.narrow(0, 0, count).addcmul_(part, taps.weight(distance));
      }
      gradient.narrow(0, begin, rows).copy_(sum);
    });
    return gradient;
  }

  // Returns fp32 [channels, 1, taps].
  static at::Tensor taps_gradient(const Taps& taps, const at::Tensor& x, const at::Tensor& inner) {
    const at::Tensor sums = at::zeros_like(taps.weights);
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      for (int64_t distance = 0; distance < taps.count(); ++distance) {
        const int64_t skipped = std::max<int64_t>(0, distance - begin);
        if (skipped >= rows) break;
        at::Tensor part = taps.earlier(x, begin + skipped, rows - skipped, distance);
        add_row_sum(sums[taps.count() - 1 - distance],
                    part.mul_(inner.narrow(0, begin + skipped, rows - skipped)));
      }
    });
    return sums.t().unsqueeze(1).contiguous();
  }
};

struct GatedNormFunction : Function<GatedNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate,
                            const at::Tensor& weight, double eps) {
    ctx->save_for_backward({x, gate, weight});
    ctx->saved_data["eps"] = eps;
    at::Tensor out = at::empty(x.sizes(), x.options());
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      const at::Tensor value = by_heads(x, weight, begin, rows).to(at::kFloat);
      const at::Tensor normed = value * factors(value, eps);
      const at::Tensor weighed = normed.to(x.scalar_type()).mul_(weight);
      at::Tensor product = by_heads(gate, weight, begin, rows).to(at::kFloat, false, /*copy=*/true);
      by_heads(out, weight, begin, rows).copy_(at::silu_(product).mul_(weighed));
    });
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::NoGradGuard no_grad;
    const at::Tensor x = saved[0].detach(), gate = saved[1].detach(), weight = saved[2].detach();
    const double eps = ctx->saved_data["eps"].toDouble();
    variable_list result(4);
    result[0] = at::empty(x.sizes(), x.options());
    result[1] = at::empty(gate.sizes(), gate.options());
    const at::Tensor sum = at::zeros(weight.sizes(), weight.options().dtype(at::kFloat));
    const at::Tensor wide = weight.to(at::kFloat);
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      const at::Tensor value = by_heads(x, weight, begin, rows).to(at::kFloat);
      const at::Tensor factor = factors(value, eps);
      const at::Tensor normed = value * factor;
      const at::Tensor switched = by_heads(gate, weight, begin, rows).to(at::kFloat);
      const at::Tensor upper = by_heads(grads[0], weight, begin, rows).to(at::kFloat);
      by_heads(result[1], weight, begin, rows)
          .copy_(at::silu_backward(upper * normed * wide, switched));
      at::Tensor inner = at::silu(switched).mul_(upper);
      if (ctx->needs_input_grad(2)) {
        add_row_sum(sum, (inner * normed).view({-1, weight.size(0)}));
      }
      inner.mul_(wide);
      const at::Tensor along = (inner * normed).mean(-1, true);
      by_heads(result[0], weight, begin, rows).copy_(inner.sub_(normed * along).mul_(factor));
    });
    if (ctx->needs_input_grad(2)) result[2] = sum.to(weight.scalar_type());
    return result;
  }

  static at::Tensor by_heads(const at::Tensor& x, const at::Tensor& weight, int64_t begin,
                             int64_t rows) {
    return x.narrow(0, begin, rows).view({rows, -1, weight.size(0)});
  }
  static at::Tensor factors(const at::Tensor& value, double eps) {
    return value.square().mean(-1, true).add_(eps).rsqrt_();
  }
};

struct NormOfGatedFunction : Function<NormOfGatedFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate,
                            const at::Tensor& weight, int64_t groups, double eps) {
    ctx->save_for_backward({x, gate, weight});
    ctx->saved_data["groups"] = groups;
    ctx->saved_data["eps"] = eps;
    at::Tensor out = at::empty(gate.sizes(), gate.options());
    const at::Tensor wide = weight.to(at::kFloat);
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      const at::Tensor open = gate.narrow(0, begin, rows).to(at::kFloat);
      const at::Tensor gated = x.narrow(0, begin, rows) * at::silu(open);
      out.narrow(0, begin, rows).copy_(gated.mul_(factors(gated, groups, eps)).mul_(wide));
    });
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::NoGradGuard no_grad;
    const at::Tensor x = saved[0].detach(), gate = saved[1].detach(), weight = saved[2].detach();
    const int64_t groups = ctx->saved_data["groups"].toInt();
    const double eps = ctx->saved_data["eps"].toDouble();
    variable_list result(5);
    result[0] = at::empty(x.sizes(), x.options());
    result[1] = at::empty(gate.sizes(), gate.options());
    const at::Tensor wide = weight.to(at::kFloat), sum = at::zeros_like(wide);
    for_row_pieces(x, [&](int64_t begin, int64_t rows) {
      const at::Tensor value = x.narrow(0, begin, rows);
      const at::Tensor open = gate.narrow(0, begin, rows).to(at::kFloat);
      const at::Tensor upper = grads[0].narrow(0, begin, rows).to(at::kFloat);
      const at::Tensor switched = at::silu(open), gated = value * switched;
      const at::Tensor factor = factors(gated, groups, eps), normed = gated * factor;
      if (ctx->needs_input_grad(2)) add_row_sum(sum, upper * normed);
      const at::Tensor inner = upper * wide;
      const at::Tensor along = over_groups((inner * normed), groups);
      const at::Tensor grad = (inner - normed * along).mul_(factor);
      result[1].narrow(0, begin, rows).copy_(at::silu_backward(grad * value, open));
      result[0].narrow(0, begin, rows).copy_(grad * switched);
    });
    if (ctx->needs_input_grad(2)) result[2] = sum.to(weight.scalar_type());
    return result;
  }

  // Returns each value's mean over its group. The result may be a view in which a group's values
  // are one.
  static at::Tensor over_groups(const at::Tensor& x, int64_t groups) {
    const at::Tensor parts = x.view({x.size(0), groups, -1});
    return parts.mean(-1, true).expand_as(parts).reshape(x.sizes());
  }
  static at::Tensor factors(const at::Tensor& x, int64_t groups, double eps) {
    return over_groups(x.square(), groups).add(eps).rsqrt_();
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
  return GatedNormFunction::apply(x, gate, weight, eps);
}

at::Tensor norm_of_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                         int64_t groups, double eps) {
  return NormOfGatedFunction::apply(x, gate, weight, groups, eps);
}

}  // namespace longshore
