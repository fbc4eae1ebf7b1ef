#include <cmath>

#include "trainer/verify/plain_layer.h"
#include "trainer/verify/plain_mixers.h"

namespace longshore {

at::Tensor plain_latent(const PlainDecoder::Layer& layer, const at::Tensor& x,
                        PlainDecoder::Shared&) {
  const LatentSpec& spec = layer.arch().latent;
  const int64_t positions = x.size(0);
  const auto normed = [&](const at::Tensor& y, Module module) {
    return y / at::sqrt((y * y).mean(-1, true) + 1e-6) * layer.get(module);
  };
  const auto heads = [&](const at::Tensor& y) {
    return y.reshape({positions, layer.arch().heads, -1}).transpose(0, 1);
  };
  const at::Tensor queries =
      heads(spec.query_rank == 0
                ? layer.linear(Module::kQuery, x)
                : layer.linear(Module::kQueryUp, normed(layer.linear(Module::kQueryDown, x),
                                                        Module::kQueryLatentNorm)));
  const at::Tensor down = layer.linear(Module::kLatentDown, x);
  const at::Tensor up = heads(
      layer.linear(Module::kLatentUp, normed(down.narrow(1, 0, spec.rank), Module::kLatentNorm)));
  const auto turned = [&](const at::Tensor& y) {
    return plain_rotated(y, layer.arch().rope, spec.rope_dim);
  };
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

}  // namespace longshore
