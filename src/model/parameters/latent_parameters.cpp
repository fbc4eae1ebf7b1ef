#include "model/parameters/mixer_parameters.h"

#include <array>

namespace longshore {
namespace {

constexpr std::array kMatrices = {Module::kQuery,      Module::kQueryDown, Module::kQueryUp,
                                  Module::kLatentDown, Module::kLatentUp,  Module::kOutput};

void add(UnitBuilder& builder, const ArchSpec& arch, const LayerSpec&) {
  const LatentSpec& latent = arch.latent;
  const int64_t queries = arch.heads * latent.key_dim();
  if (latent.query_rank == 0) {
    builder.matrix(Module::kQuery, queries, arch.hidden, false);
  } else {
    builder.matrix(Module::kQueryDown, latent.query_rank, arch.hidden, arch.qkv_bias);
    builder.norm(Module::kQueryLatentNorm, latent.query_rank, NormKind::kRms);
    builder.matrix(Module::kQueryUp, queries, latent.query_rank, false);
  }
  builder.matrix(Module::kLatentDown, latent.rank + latent.rope_dim, arch.hidden, arch.qkv_bias);
  builder.holds(Module::kLatentDown, {latent.rank, latent.rope_dim});
  builder.norm(Module::kLatentNorm, latent.rank, NormKind::kRms);
  builder.matrix(Module::kLatentUp, arch.heads * (latent.plain_dim + latent.value_dim), latent.rank,
                 false);
  builder.holds(Module::kLatentUp, {latent.plain_dim, latent.value_dim});
  builder.matrix(Module::kOutput, arch.hidden, arch.heads * latent.value_dim, arch.output_bias,
                 arch.residual_init_scale);
}

}  // namespace

MixerParameters latent_parameters() {
  return {.add = add, .matrices = kMatrices, .attends = true};
}

}  // namespace longshore
