#include "trainer/verify/plain_mixers.h"

#include <array>

#include "trainer/verify/plain_layer.h"

namespace longshore {

at::Tensor plain_mixed(const PlainDecoder::Layer& layer, const at::Tensor& x,
                       PlainDecoder::Shared& text) {
  // In the order of MixerKind.
#define LONGSHORE_MIXER(kind, name) plain_##name,
  static constexpr std::array kFormulas = {LONGSHORE_MIXERS(LONGSHORE_MIXER)};
#undef LONGSHORE_MIXER
  return kFormulas.at(static_cast<size_t>(layer.spec().mixer))(layer, x, text);
}

}  // namespace longshore
