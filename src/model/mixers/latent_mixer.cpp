#include "model/mixers/mixer.h"

#include "model/attention/gpu_attention.h"
#include "model/mixers/sequence_rows.h"
#include "model/ops/rope_table.h"

namespace longshore {
namespace {

// The norms of latents have another eps in transformers.
constexpr double kLatentNormEps = 1e-6;

// Returns x [T, heads, n] as [T, heads * width], with zeros behind each head's values.
at::Tensor padded(const at::Tensor& x, int64_t width) {
  return at::constant_pad_nd(x, {0, width - x.size(2)}).flatten(1);
}

// Latent attention. Keys and values are computed from their latent for every head, so attention is
// that of other models.
class LatentMixer final : public Mixer {
 public:
  LatentMixer(const ArchSpec& arch, int64_t layer, const ModuleIndex& index)
      : Mixer(arch, layer, index), rope_(arch.rope, arch.latent.rope_dim) {}
  UnitTraits traits(const UnitUse& use) const override {
    const LatentSpec& latent = arch_.latent;
    UnitTraits traits{.documents = {use.longest_document}};
    traits.signature = signature_text(" latent", arch_.heads, latent.query_rank, latent.rank,
                                      latent.plain_dim, latent.rope_dim, latent.value_dim,
                                      arch_.rope.pairs, arch_.rope.attention_factor != 1.0);
    // This length slightly overfills the calls of FlashAttention's backward, so one more runs.
    const int64_t overfull = kFlashPadding - 1;
    if (use.device == DeviceKind::kCuda && overfull < use.longest_document) {
      traits.documents.push_back(overfull);
    }
    traits.documents.push_back(1);
    traits.set_attention(
        {.heads = arch_.heads, .kv_heads = arch_.heads, .head_dim = arch_.head_dim});
    return traits;
  }
  // Decoding keeps the keys and values of every head. The latent and the rotated part of the keys
  // would need a tenth of the bytes (576 numbers a position instead of 6,144 with 16 heads of 192)
  // if the queries and the results were multiplied by the halves of the latent's matrix. That
  // matrix may be packed or have an adapter (with DoRA its factors too), whose sum would be made
  // for every token; and a decoded token would no longer have the sums of training. So the same
  // products and the same attention serve both, and a plan sees what it costs.
  std::vector<StateTensor> states(const StateUse& use) const override {
    const std::vector<int64_t> shape = {use.longest, arch_.heads * arch_.head_dim};
    return {{.name = "keys", .shape = shape, .type = use.compute},
            {.name = "values", .shape = shape, .type = use.compute}};
  }
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values, KeysValues*) const override {
    const LatentSpec& sizes = arch_.latent;
    const int64_t positions = x.size(0), heads = arch_.heads, width = arch_.head_dim;
    const bool direct = sizes.query_rank == 0;
    const std::vector<at::Tensor> first =
        products(parameters, x, norm,
                 {direct ? Module::kQuery : Module::kQueryDown, Module::kLatentDown}, batch);
    const at::Tensor queries =
        direct ? first[0]
               : expanded(parameters, first[0], Module::kQueryLatentNorm, Module::kQueryUp, batch);
    const at::Tensor latent = first[1].narrow(1, 0, sizes.rank).contiguous();
    const at::Tensor both =
        expanded(parameters, latent, Module::kLatentNorm, Module::kLatentUp, batch)
            .view({positions, heads, sizes.plain_dim + sizes.value_dim});
    const Rotation rotation =
        rope_.rotation(batch.document_starts, text_lengths(batch), x.device());
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
    const at::Tensor v = both.narrow(2, sizes.plain_dim, sizes.value_dim);
    at::Tensor mixed = batch.continued != nullptr
                           ? attend_continued(padded(q, width), padded(k, width), padded(v, width),
                                              shape, continued_rows(sequence_rows(batch, number_)))
                           : attend(padded(q, width), padded(k, width), padded(v, width), shape,
                                    batch.document_starts, {}, attention_place(batch.results));
    mixed = mixed.view({positions, heads, width})
                .narrow(2, 0, sizes.value_dim)
                .reshape({positions, -1});
    return products(parameters, mixed, {}, {Module::kOutput}, batch, values)[0];
  }

 private:
  // Returns norm(latent) times the matrix of `up`.
  at::Tensor expanded(UnitParameters parameters, const at::Tensor& latent, Module norm, Module up,
                      const MicroBatch& batch) const {
    const NormWeights own = index_.norm(parameters, norm, NormKind::kRms, kLatentNormEps);
    return products(parameters, latent, own, {up}, batch)[0];
  }

  RopeTable rope_;
};

}  // namespace

std::unique_ptr<Mixer> make_latent_mixer(const ArchSpec& arch, int64_t layer,
                                         const ModuleIndex& index) {
  return std::make_unique<LatentMixer>(arch, layer, index);
}

}  // namespace longshore
