#include "model/mixer.h"

#include "base/errors.h"
#include "model/attention_mixer.h"
#include "model/convolution_mixers.h"
#include "model/latent_mixer.h"

namespace longshore {

at::Tensor Mixer::forward_sharing(UnitParameters, const at::Tensor&, const NormWeights&,
                                  const MicroBatch&, Values, KeysValues&) const {
  LONGSHORE_CHECK(false) << "a mixer without keys shares them";
  return {};
}

std::vector<CarryTensorSpec> mixer_results(const ArchSpec& arch, const LayerSpec& layer) {
  const bool attends = layer.mixer == MixerKind::kAttention || layer.mixer == MixerKind::kLatent;
  if (!layer.has_mixer || !attends) return {};
  const ArchSpec own = arch.of_layer(layer);
  return {{.elements_per_position = own.heads * own.head_dim},
          {.elements_per_position = own.heads, .wide = true}};
}

AttentionPlace attention_place(const UnitResults& results) {
  if (results.places.empty()) return {};
  return {.out = results.places.front(), .sums = results.places.at(1), .filled = results.filled};
}

std::unique_ptr<Mixer> make_mixer(const ArchSpec& arch, const LayerSpec& layer,
                                  const ModuleIndex& index) {
  if (layer.mixer == MixerKind::kDelta) return std::make_unique<DeltaMixer>(arch, index);
  if (layer.mixer == MixerKind::kLatent) return std::make_unique<LatentMixer>(arch, layer, index);
  if (layer.mixer == MixerKind::kConvolution) {
    return std::make_unique<ConvolutionMixer>(arch, index);
  }
  if (layer.mixer == MixerKind::kMamba) return std::make_unique<MambaMixer>(arch, index);
  return std::make_unique<AttentionMixer>(arch, layer, index);
}

}  // namespace longshore
