#include "model/mixers/mixer.h"

#include <array>

namespace longshore {

std::vector<at::Tensor> Mixer::products(UnitParameters parameters, const at::Tensor& x,
                                        const NormWeights& norm, const std::vector<Module>& modules,
                                        const MicroBatch& batch, Values values) const {
  std::vector<Linear> linears;
  for (const Module module : modules) linears.push_back(index_.linear(parameters, module, batch));
  return linear_group(x, norm, linears, values);
}

AttentionPlace attention_place(const UnitResults& results) {
  if (!place_of(results, 0).defined()) return {};
  return {.out = results.places.front(), .sums = results.places.at(1), .filled = results.filled};
}

at::Tensor place_of(const UnitResults& results, size_t result) {
  return result < results.places.size() ? results.places[result] : at::Tensor();
}

Values values_beside(const UnitResults& results, size_t result) {
  const bool given = results.filled && place_of(results, result).defined();
  return given ? Values::kUnread : Values::kComputed;
}

void keep(std::vector<at::Tensor>& tensors, size_t count, const UnitResults& results,
          size_t first) {
  for (size_t i = 0; i < count; ++i) {
    tensors[i] = kept_result(tensors[i], place_of(results, first + i), results.filled);
  }
}

std::unique_ptr<Mixer> make_mixer(const ArchSpec& arch, int64_t layer, const ModuleIndex& index) {
  // In the order of MixerKind.
#define LONGSHORE_MIXER(kind, name) make_##name##_mixer,
  static constexpr std::array kMixers = {LONGSHORE_MIXERS(LONGSHORE_MIXER)};
#undef LONGSHORE_MIXER
  const MixerKind kind = arch.layers.at(static_cast<size_t>(layer)).mixer;
  return kMixers.at(static_cast<size_t>(kind))(arch, layer, index);
}

}  // namespace longshore
