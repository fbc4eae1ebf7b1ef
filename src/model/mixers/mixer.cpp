#include "model/mixers/mixer.h"

namespace longshore {

std::vector<at::Tensor> Mixer::products(UnitParameters parameters, const at::Tensor& x,
                                        const NormWeights& norm, const std::vector<Module>& modules,
                                        const MicroBatch& batch, Values values) const {
  std::vector<Linear> linears;
  for (const Module module : modules) linears.push_back(index_.linear(parameters, module, batch));
  return linear_group(x, norm, linears, values);
}

AttentionPlace attention_place(const UnitResults& results) {
  if (results.places.empty()) return {};
  return {.out = results.places.front(), .sums = results.places.at(1), .filled = results.filled};
}

std::unique_ptr<Mixer> make_mixer(const ArchSpec& arch, const LayerSpec& layer,
                                  const ModuleIndex& index) {
  switch (layer.mixer) {
    case MixerKind::kAttention:
      return make_attention_mixer(arch, layer, index);
    case MixerKind::kLatent:
      return make_latent_mixer(arch, layer, index);
    case MixerKind::kConvolution:
      return make_convolution_mixer(arch, layer, index);
    case MixerKind::kDelta:
      return make_delta_mixer(arch, layer, index);
    case MixerKind::kMamba:
      return make_mamba_mixer(arch, layer, index);
  }
  return nullptr;
}

}  // namespace longshore
