#include <vector>

#include "trainer/verify/plain_layer.h"
#include "trainer/verify/plain_mixers.h"

namespace longshore {

// Computes Mamba-2 token by token, as its recurrence says.
at::Tensor plain_mamba(const PlainDecoder::Layer& layer, const at::Tensor& x,
                       PlainDecoder::Shared&) {
  const MambaSpec& spec = layer.arch().mamba;
  const int64_t positions = x.size(0), inner = spec.inner_width(), keyed = spec.groups * spec.state;
  const auto parts = layer.linear(Module::kMambaIn, x)
                         .split_with_sizes({inner, spec.mixed_width(), spec.heads}, 1);
  at::Tensor in = plain_convolved(parts[1], layer.get(Module::kMambaConv));
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
      (groups / at::sqrt((groups * groups).mean(-1, true) + layer.arch().norm_eps)).flatten(1);
  return layer.linear(Module::kMambaOut, y * layer.get(Module::kMambaNorm));
}

}  // namespace longshore
