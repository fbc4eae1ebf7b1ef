// continued_convolution: the causal convolution (mixer_passes.h) of sequences that decoding
// continues. Their state is the last inputs of the convolution. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/mixers/mixer_passes.h"
#include "model/mixers/sequence_rows.h"
#include "model/units/sequence_states.h"

namespace longshore {

// Returns what a convolution with `taps` taps keeps of a sequence.
StateTensor convolution_state(int64_t taps, int64_t channels, const StateUse& use);

// Returns the convolution of x [T, channels], where the inputs before a sequence's rows are those
// of its state, tensor `place`, which becomes that behind its rows. They are 0 before a sequence.
at::Tensor continued_convolution(const at::Tensor& x, const ConvolutionWeights& weights,
                                 std::span<const SequenceRows> sequences, size_t place);

}  // namespace longshore
