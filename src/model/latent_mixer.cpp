#include "model/latent_mixer.h"

#include <array>

#include "model/gpu_attention.h"

namespace longshore {
namespace {

// Returns x [T, heads, n] as [T, heads * width], with zeros behind each head's values.
at::Tensor padded(const at::Tensor& x, int64_t width) {
  return at::constant_pad_nd(x, {0, width - x.size(2)}).flatten(1);
}

}  // namespace

LatentMixer::LatentMixer(const ArchSpec& arch, const LayerSpec& layer, const ModuleIndex& index)
    : arch_(arch), layer_(layer), index_(index), rope_(arch.rope, arch.latent.rope_dim) {}

std::string LatentMixer::signature() const {
  const LatentSpec& latent = arch_.latent;
  std::string text = " latent";
  for (const int64_t value :
       {arch_.heads, latent.query_rank, latent.rank, latent.plain_dim, latent.rope_dim,
        latent.value_dim, static_cast<int64_t>(arch_.rope.pairs),
        static_cast<int64_t>(arch_.rope.attention_factor != 1.0)}) {
    text += " " + std::to_string(value);
  }
  return text;
}

std::vector<int64_t> LatentMixer::worst_documents(int64_t longest, DeviceKind device) const {
  std::vector<int64_t> lengths = {longest};
  // This length slightly overfills the calls of FlashAttention's backward, so one more runs.
  const int64_t overfull = kFlashPadding - 1;
  if (device == DeviceKind::kCuda && overfull < longest) lengths.push_back(overfull);
  lengths.push_back(1);
  return lengths;
}

AttentionHeads LatentMixer::attention_heads() const {
  return {.heads = arch_.heads, .kv_heads = arch_.heads, .head_dim = arch_.head_dim};
}

at::Tensor LatentMixer::expanded(UnitParameters parameters, const at::Tensor& latent, Module norm,
                                 Module up, const MicroBatch& batch) const {
  const std::array weights{index_.linear(parameters, up, batch)};
  const NormWeights own = index_.norm(parameters, norm, NormKind::kRms, kLatentNormEps);
  return linear_group(latent, own, weights, arch_.transposed_weights)[0];
}

at::Tensor LatentMixer::forward(UnitParameters parameters, const at::Tensor& x,
                                const NormWeights& norm, const MicroBatch& batch,
                                Values values) const {
  const LatentSpec& sizes = arch_.latent;
  const int64_t positions = x.size(0), heads = arch_.heads, width = arch_.head_dim;
  const bool direct = sizes.query_rank == 0;
  const std::array down{
      index_.linear(parameters, direct ? Module::kQuery : Module::kQueryDown, batch),
      index_.linear(parameters, Module::kLatentDown, batch)};
  const std::vector<at::Tensor> first = linear_group(x, norm, down, arch_.transposed_weights);
  const at::Tensor queries =
      direct ? first[0]
             : expanded(parameters, first[0], Module::kQueryLatentNorm, Module::kQueryUp, batch);
  const at::Tensor latent = first[1].narrow(1, 0, sizes.rank).contiguous();
  const at::Tensor both =
      expanded(parameters, latent, Module::kLatentNorm, Module::kLatentUp, batch)
          .view({positions, heads, sizes.plain_dim + sizes.value_dim});
  const Rotation rotation = rope_.rotation(batch.document_starts, x.device());
  const auto rotated = [&](const at::Tensor& part) {
    return rotate_heads(part.contiguous(), batch.positions, rotation, sizes.rope_dim)
        .view({positions, -1, sizes.rope_dim});
  };
  const at::Tensor by_head = queries.view({positions, heads, sizes.key_dim()});
  const at::Tensor q = at::cat(
      {by_head.narrow(2, 0, sizes.plain_dim),
       rotated(by_head.narrow(2, sizes.plain_dim, sizes.rope_dim).reshape({positions, -1}))},
      2);
  const at::Tensor shared = rotated(first[1].narrow(1, sizes.rank, sizes.rope_dim));
  const at::Tensor k =
      at::cat({both.narrow(2, 0, sizes.plain_dim), shared.expand({-1, heads, -1})}, 2);
  const AttentionShape shape{
      .heads = heads, .kv_heads = heads, .head_dim = width, .scale = layer_.attention_scale};
  const at::Tensor mixed = attend(padded(q, width), padded(k, width),
                                  padded(both.narrow(2, sizes.plain_dim, sizes.value_dim), width),
                                  shape, batch.document_starts, {}, attention_place(batch.results))
                               .view({positions, heads, width})
                               .narrow(2, 0, sizes.value_dim)
                               .reshape({positions, -1});
  const std::array output{index_.linear(parameters, Module::kOutput, batch)};
  return linear_group(mixed, {}, output, arch_.transposed_weights, values)[0];
}

}  // namespace longshore
