// continued_attention: causal attention of the next rows of sequences over the keys and values that
// decoding has kept of each (model/units/sequence_states.h). Without autograd; compute thread only.
//
// [Note: bits of a continued row] The bits of a row depend on its query and on the keys and values
// of its sequence up to its position: never on the other sequences of a call, on the number of
// threads, or on how the rows of its sequence are divided among calls. A row adds its positions in
// rising order, in blocks whose borders are multiples of kernels::kContinuedBlock.
//
// On the CPU all sequences and key heads of a call run in parallel (kernels/continued_rows.h). On a
// GPU LibTorch's operations compute one sequence after the other in fp32, from a copy of all keys
// and values that its rows see: correct, but slow for many sequences, and bits depend on the rows
// of a call.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

#include "model/attention/document_attention.h"

namespace longshore {

// The rows of one sequence in a call, and the memory that it keeps.
struct ContinuedRows {
  int64_t begin = 0, count = 0;  // its rows of q, k and v; at least 1
  int64_t before = 0;            // positions that its cache holds already
  // [capacity, kv_heads * head_dim], contiguous, in the type of k and v. Position p lies in row
  // p % capacity, so a window needs no more rows than it sees.
  at::Tensor keys, values;
};

// q is [T, heads * head_dim]; k and v are [T, kv_heads * head_dim], the new keys and values, after
// rotation; rows may be strided. Row i of a sequence has the position before + i, and attends to
// the positions up to its own, or the last shape.window of them. `sinks` [heads], if defined, adds
// one score to every query of a head; it takes a share of the weights and adds no value.
//
// Writes the new keys and values to the caches, where the later rows of this call do not yet
// overwrite what earlier rows see: the capacity is at least min(before + count, shape.window).
// If k and v are undefined, the caches hold the new positions already (layers that share keys):
// then nothing is written, and the capacity is at least min(before + count, shape.window - 1 +
// count). Returns [T, heads * head_dim] in the type of q, which is that of k and v.
at::Tensor attend_continued(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionShape& shape, std::span<const ContinuedRows> sequences,
                            const at::Tensor& sinks = {});

}  // namespace longshore
