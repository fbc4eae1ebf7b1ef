#include "model/mixers/mixer.h"

#include "model/mixers/continued_convolution.h"
#include "model/mixers/mixer_passes.h"

namespace longshore {
namespace {

// A short causal convolution between two gates, as in LFM2.
class ConvolutionMixer final : public Mixer {
 public:
  using Mixer::Mixer;

  // Its memory does not depend on the lengths of documents.
  UnitTraits traits(const UnitUse& use) const override {
    return {
        .signature = signature_text(" convolution", arch_.convolution.taps, arch_.convolution.bias),
        .documents = {use.longest_document}};
  }
  std::vector<StateTensor> states(const StateUse& use) const override {
    return {convolution_state(arch_.convolution.taps, arch_.hidden, use)};
  }
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values, KeysValues*) const override {
    const std::vector<at::Tensor> parts =
        products(parameters, x, norm, {Module::kConvolutionIn}, batch)[0].chunk(3, 1);
    const ConvolutionWeights weights{.taps = index_.weight(parameters, Module::kConvolutionTaps),
                                     .bias = index_.bias(parameters, Module::kConvolutionTaps),
                                     .activated = false};
    const at::Tensor inner = parts[0] * parts[2];
    const at::Tensor mixed =
        parts[1] * (batch.continued != nullptr
                        ? continued_convolution(inner, weights, sequence_rows(batch, number_), 0)
                        : causal_convolution(inner, weights, batch.positions));
    return products(parameters, mixed, {}, {Module::kConvolutionOut}, batch, values)[0];
  }
};

}  // namespace

std::unique_ptr<Mixer> make_convolution_mixer(const ArchSpec& arch, int64_t layer,
                                              const ModuleIndex& index) {
  return std::make_unique<ConvolutionMixer>(arch, layer, index);
}

}  // namespace longshore
