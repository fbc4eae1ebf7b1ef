// SequenceRows: the rows of a batch that continue one sequence, with what the layer keeps of it
// (model/units/sequence_states.h). A mixer makes them for one forward. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/attention/continued_attention.h"
#include "model/units/unit.h"

namespace longshore {

struct SequenceRows {
  int64_t begin = 0, count = 0;        // its rows of the batch
  int64_t before = 0;                  // positions that the state has already
  std::vector<at::Tensor> state = {};  // in the order of Mixer::states
};

// Returns those of MicroBatch::continued, with the states of the layer.
std::vector<SequenceRows> sequence_rows(const MicroBatch& batch, int64_t layer);

// Returns them for attention, whose state is keys and values.
std::vector<ContinuedRows> continued_rows(const std::vector<SequenceRows>& sequences);

// Returns the length of the text of each document: of what the batch has of it or, if it continues
// a sequence, of ContinuedSequences::lengths.
std::vector<int64_t> text_lengths(const MicroBatch& batch);

}  // namespace longshore
