// plain_mixers: the formula of each mixer of a layer in fp64 with plain operations, for
// PlainDecoder. Each mixer has a file of its own, plain_<name>.cpp. Pure functions of the layer's
// parameters; one thread.
#pragma once

#include <ATen/ATen.h>

#include "model/families/arch_spec.h"
#include "trainer/verify/plain_decoder.h"

namespace longshore {

// Returns the output, [T, hidden], of the layer's mixer for its normed input x. `text` has the keys
// of earlier layers, and gets the layer's.
at::Tensor plain_mixed(const PlainDecoder::Layer& layer, const at::Tensor& x,
                       PlainDecoder::Shared& text);

// Each is the formula of one mixer.
#define LONGSHORE_MIXER(kind, name)                                              \
  at::Tensor plain_##name(const PlainDecoder::Layer& layer, const at::Tensor& x, \
                          PlainDecoder::Shared& text);
LONGSHORE_MIXERS(LONGSHORE_MIXER)
#undef LONGSHORE_MIXER

}  // namespace longshore
