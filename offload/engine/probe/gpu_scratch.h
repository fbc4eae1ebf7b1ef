// What a GPU's kernels take beside the tensors that a CPU's take too, for plans made where there is
// no GPU to measure it on. Estimates; pure functions.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "model/unit.h"

namespace longshore {

// Deterministic FlashAttention's backward over documents of different lengths (PyTorch's
// mha_varlen_bwd): sums of the queries' gradients in fp32, one set for each of `processors` that
// the heads leave idle, each document padded by 128 rows, and the gradients of keys and values for
// all heads in 2 bytes. 0 without attention.
Bytes flash_backward_scratch(const AttentionHeads& attention, int64_t positions, int64_t document,
                             int64_t processors);

// What of a unit's work takes other memory on a GPU.
struct GpuWork {
  AttentionHeads attention;
  int64_t positions_at_once = 0;  // of a head
  Bytes of_position = 0;          // of each of them
};
GpuWork gpu_work(const UnitCode& unit, DType compute);

// What a head's chunk takes in a micro-batch of so many positions; its chunk on the CPU is smaller.
Bytes gpu_chunk_bytes(const GpuWork& work, int64_t positions);

// The largest over the documents' lengths that a run may meet, on a GPU of any kind. Documents of
// fewer than 128 tokens on average take more: nobody packs a micro-batch of those alone.
Bytes gpu_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest_document);

}  // namespace longshore
