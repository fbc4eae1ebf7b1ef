// delta_steps: the recurrence of gated DeltaNet (delta_rule.h) over sequences that decoding
// continues: one position after the other, also in prompts, in fp32. So a sequence has the same
// bits however its positions are divided among calls. Without autograd; compute thread only.
//
// On the CPU threads share the sequences and key heads. On a GPU LibTorch's operations compute one
// sequence after the other: correct, but slow for long prompts and for many sequences.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <span>

#include "model/families/arch_spec.h"
#include "model/mixers/delta_rule.h"
#include "model/mixers/sequence_rows.h"
#include "model/units/sequence_states.h"

namespace longshore {

// Returns what the recurrence keeps of a sequence.
StateTensor delta_state(const DeltaSpec& spec);

// Returns what delta_rule returns. Tensor `place` of each sequence's state moves to behind its
// rows; it begins at zero.
at::Tensor delta_steps(const DeltaInputs& inputs, const DeltaSpec& spec,
                       std::span<const SequenceRows> sequences, size_t place);

}  // namespace longshore
