#include "model/mixer.h"

#include "base/errors.h"
#include "model/attention_mixer.h"
#include "model/convolution_mixer.h"
#include "model/delta_mixer.h"
#include "model/latent_mixer.h"
#include "model/mamba_mixer.h"

namespace longshore {

at::Tensor Mixer::forward_sharing(UnitParameters, const at::Tensor&, const NormWeights&,
                                  const MicroBatch&, Values, KeysValues&) const {
  LONGSHORE_CHECK(false) << "a mixer without keys shares them";
  return {};
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
