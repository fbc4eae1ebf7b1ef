// The mixers of PlainDecoder other than attention.
#include <cmath>

#include "trainer/verify/plain_layer.h"

namespace longshore {
namespace {

// Returns the sum over the taps [channels, 1, n] of x [T, channels] at the n latest positions.
at::Tensor convolved(const at::Tensor& x, const at::Tensor& taps) {
  const int64_t count = taps.size(2);
  const at::Tensor before = at::cat({at::zeros({count - 1, x.size(1)}, x.options()), x}, 0);
  at::Tensor sum = at::zeros_like(x);
  for (int64_t tap = 0; tap < count; ++tap) {
    sum = sum + before.narrow(0, tap, x.size(0)) * taps.squeeze(1).select(1, tap);
  }
  return sum;
}

}  // namespace

// Returns queries with keys and values, gate, beta and decay.
std::array<at::Tensor, 4> PlainDecoder::delta_products(const Layer& layer,
                                                       const at::Tensor& x) const {
  const DeltaSpec& spec = arch_.delta;
  if (!spec.fused) {
    return {layer.linear(Module::kDeltaQkv, x), layer.linear(Module::kDeltaGate, x),
            layer.linear(Module::kDeltaBeta, x), layer.linear(Module::kDeltaDecay, x)};
  }
  const int64_t times = spec.value_heads / spec.key_heads, width = times * spec.value_dim;
  const auto rows = layer.linear(Module::kDeltaQkvGate, x).chunk(spec.key_heads, 1);
  const auto pairs = layer.linear(Module::kDeltaBetaDecay, x).chunk(spec.key_heads, 1);
  std::vector<at::Tensor> queries, keys, values, gates, betas, decays;
  for (size_t head = 0; head < rows.size(); ++head) {
    queries.push_back(rows[head].narrow(1, 0, spec.key_dim));
    keys.push_back(rows[head].narrow(1, spec.key_dim, spec.key_dim));
    values.push_back(rows[head].narrow(1, 2 * spec.key_dim, width));
    gates.push_back(rows[head].narrow(1, 2 * spec.key_dim + width, width));
    betas.push_back(pairs[head].narrow(1, 0, times));
    decays.push_back(pairs[head].narrow(1, times, times));
  }
  const at::Tensor mixed = at::cat({at::cat(queries, 1), at::cat(keys, 1), at::cat(values, 1)}, 1);
  return {mixed, at::cat(gates, 1), at::cat(betas, 1), at::cat(decays, 1)};
}

// Computes gated DeltaNet token by token, as its recurrence says.
at::Tensor PlainDecoder::delta(const Layer& layer, const at::Tensor& x) const {
  const DeltaSpec& spec = arch_.delta;
  const int64_t positions = x.size(0), times = spec.value_heads / spec.key_heads;
  const auto products = delta_products(layer, x);
  const at::Tensor mixed =
      plain_activation(convolved(products[0], layer.get(Module::kDeltaConv)), Activation::kSilu);
  const auto heads = [&](int64_t first, int64_t count, int64_t width) {
    return mixed.narrow(1, first, count * width).reshape({positions, count, width});
  };
  const auto keys = [&](int64_t first) {
    const at::Tensor y = heads(first, spec.key_heads, spec.key_dim);
    return (y / at::sqrt((y * y).sum(-1, true) + 1e-6)).repeat_interleave(times, 1);
  };
  const at::Tensor q = keys(0) / std::sqrt(static_cast<double>(spec.key_dim));
  const at::Tensor k = keys(spec.key_width());
  const at::Tensor v = heads(2 * spec.key_width(), spec.value_heads, spec.value_dim);
  const at::Tensor beta = at::sigmoid(products[2]).unsqueeze(-1);
  const at::Tensor step = products[3] + layer.get(Module::kDeltaStep);
  const at::Tensor rate = layer.get(Module::kDeltaRate).exp();
  const at::Tensor left = at::exp(-rate * at::log1p(at::exp(step))).unsqueeze(-1).unsqueeze(-1);
  at::Tensor state = at::zeros({spec.value_heads, spec.key_dim, spec.value_dim}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < positions; ++t) {
    state = left[t] * state;
    const at::Tensor known = (k[t].unsqueeze(2) * state).sum(1);
    state = state + k[t].unsqueeze(2) * (beta[t] * (v[t] - known)).unsqueeze(1);
    rows.push_back((q[t].unsqueeze(2) * state).sum(1));
  }
  at::Tensor y = at::stack(rows);
  y = y / at::sqrt((y * y).mean(-1, true) + arch_.norm_eps) * layer.get(Module::kDeltaNorm);
  const at::Tensor gate = plain_activation(products[1], Activation::kSilu);
  return layer.linear(Module::kDeltaOutput, y.flatten(1) * gate);
}

at::Tensor PlainDecoder::latent(const Layer& layer, const at::Tensor& x) const {
  const LatentSpec& spec = arch_.latent;
  const int64_t positions = x.size(0);
  const auto normed = [&](const at::Tensor& y, Module module) {
    return y / at::sqrt((y * y).mean(-1, true) + 1e-6) * layer.get(module);
  };
  const auto heads = [&](const at::Tensor& y) {
    return y.reshape({positions, arch_.heads, -1}).transpose(0, 1);
  };
  const at::Tensor queries =
      heads(spec.query_rank == 0
                ? layer.linear(Module::kQuery, x)
                : layer.linear(Module::kQueryUp, normed(layer.linear(Module::kQueryDown, x),
                                                        Module::kQueryLatentNorm)));
  const at::Tensor down = layer.linear(Module::kLatentDown, x);
  const at::Tensor up = heads(
      layer.linear(Module::kLatentUp, normed(down.narrow(1, 0, spec.rank), Module::kLatentNorm)));
  const auto turned = [&](const at::Tensor& y) { return rotate(y, arch_.rope, spec.rope_dim); };
  const at::Tensor plain = at::matmul(queries.narrow(2, 0, spec.plain_dim),
                                      up.narrow(2, 0, spec.plain_dim).transpose(1, 2));
  const at::Tensor placed =
      at::matmul(turned(queries.narrow(2, spec.plain_dim, spec.rope_dim)),
                 turned(down.narrow(1, spec.rank, spec.rope_dim).unsqueeze(0)).transpose(1, 2));
  const at::Tensor scores = ((plain + placed) * layer.spec().attention_scale)
                                .masked_fill(hidden_keys(positions, 0), -HUGE_VAL);
  const at::Tensor mixed =
      at::matmul(at::softmax(scores, -1), up.narrow(2, spec.plain_dim, spec.value_dim));
  return layer.linear(Module::kOutput, mixed.transpose(0, 1).flatten(1));
}

at::Tensor PlainDecoder::convolution(const Layer& layer, const at::Tensor& x) const {
  const at::Tensor parts = layer.linear(Module::kConvolutionIn, x);
  const auto part = [&](int64_t number) {
    return parts.narrow(1, number * arch_.hidden, arch_.hidden);
  };
  at::Tensor y = convolved(part(0) * part(2), layer.get(Module::kConvolutionTaps));
  const at::Tensor bias = layer.get(Module::kConvolutionTaps, ParameterRole::kBias);
  if (bias.defined()) y = y + bias;
  return layer.linear(Module::kConvolutionOut, part(1) * y);
}

// Computes Mamba-2 token by token, as its recurrence says.
at::Tensor PlainDecoder::mamba(const Layer& layer, const at::Tensor& x) const {
  const MambaSpec& spec = arch_.mamba;
  const int64_t positions = x.size(0), inner = spec.inner_width(), keyed = spec.groups * spec.state;
  const auto parts = layer.linear(Module::kMambaIn, x)
                         .split_with_sizes({inner, spec.mixed_width(), spec.heads}, 1);
  at::Tensor in = convolved(parts[1], layer.get(Module::kMambaConv));
  const at::Tensor bias = layer.get(Module::kMambaConv, ParameterRole::kBias);
  in = plain_activation(bias.defined() ? in + bias : in, Activation::kSilu);
  const auto keys = [&](int64_t first) {
    return in.narrow(1, first, keyed)
        .reshape({positions, spec.groups, spec.state})
        .repeat_interleave(spec.heads / spec.groups, 1);
  };
  const at::Tensor values = in.narrow(1, 0, inner).reshape({positions, spec.heads, spec.head_dim});
  const at::Tensor b = keys(inner), c = keys(inner + keyed);
  const at::Tensor step = at::log1p(at::exp(parts[2] + layer.get(Module::kMambaStep)))
                              .clamp_min(spec.least_step)
                              .unsqueeze(-1)
                              .unsqueeze(-1);
  const at::Tensor rate = layer.get(Module::kMambaRate).exp().unsqueeze(-1).unsqueeze(-1);
  const at::Tensor skip = layer.get(Module::kMambaSkip).unsqueeze(-1);
  at::Tensor state = at::zeros({spec.heads, spec.head_dim, spec.state}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < positions; ++t) {
    state = at::exp(-rate * step[t]) * state + step[t] * values[t].unsqueeze(2) * b[t].unsqueeze(1);
    rows.push_back((state * c[t].unsqueeze(1)).sum(2) + skip * values[t]);
  }
  const at::Tensor gated =
      at::stack(rows).flatten(1) * plain_activation(parts[0], Activation::kSilu);
  const at::Tensor groups = gated.reshape({positions, spec.groups, -1});
  const at::Tensor y =
      (groups / at::sqrt((groups * groups).mean(-1, true) + arch_.norm_eps)).flatten(1);
  return layer.linear(Module::kMambaOut, y * layer.get(Module::kMambaNorm));
}

}  // namespace longshore
