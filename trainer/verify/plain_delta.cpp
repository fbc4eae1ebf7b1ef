#include <array>
#include <cmath>
#include <vector>

#include "trainer/verify/plain_layer.h"
#include "trainer/verify/plain_mixers.h"

namespace longshore {
namespace {

// Returns queries with keys and values, gate, beta and decay.
std::array<at::Tensor, 4> delta_products(const PlainDecoder::Layer& layer, const at::Tensor& x) {
  const DeltaSpec& spec = layer.arch().delta;
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

}  // namespace

// Computes gated DeltaNet token by token, as its recurrence says.
at::Tensor plain_delta(const PlainDecoder::Layer& layer, const at::Tensor& x,
                       PlainDecoder::Shared&) {
  const DeltaSpec& spec = layer.arch().delta;
  const int64_t positions = x.size(0), times = spec.value_heads / spec.key_heads;
  const auto products = delta_products(layer, x);
  const at::Tensor mixed = plain_activation(
      plain_convolved(products[0], layer.get(Module::kDeltaConv)), Activation::kSilu);
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
  y = y / at::sqrt((y * y).mean(-1, true) + layer.arch().norm_eps) * layer.get(Module::kDeltaNorm);
  const at::Tensor gate = plain_activation(products[1], Activation::kSilu);
  return layer.linear(Module::kDeltaOutput, y.flatten(1) * gate);
}

}  // namespace longshore
