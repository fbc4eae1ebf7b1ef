// What a GPU's kernels take that no unit was run for: on a GPU that is not here to measure it, and
// for documents of other lengths than those that were run. Pure functions.
//
// Deterministic FlashAttention's backward (PyTorch's mha_varlen_bwd) takes sums of the queries'
// gradients in fp32, one set for each processor that the heads and documents of a call leave idle,
// each document padded by 128 rows, and the gradients of keys and values for all heads in 2 bytes.
// gpu_attention.h says how many documents a call gets.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "model/unit.h"

namespace longshore {

// Streaming multiprocessors of the largest GPU that a plan made elsewhere may be for: 82 on an RTX
// 3090, 108 on an A100, 128 on an RTX 4090, 132 on an H100, 170 on an RTX 5090, 188 on an RTX PRO
// 6000.
inline constexpr int64_t kMostProcessors = 188;

// What of a unit's work takes other memory on a GPU.
struct GpuWork {
  AttentionHeads attention;
  int64_t positions_at_once = 0;  // of a head
  Bytes of_position = 0;          // of each of them
};
GpuWork gpu_work(const UnitCode& unit, DType compute);

// What a head's chunk takes in a micro-batch of so many positions; its chunk on the CPU is smaller.
Bytes gpu_chunk_bytes(const GpuWork& work, int64_t positions);

// The largest over all ways to split the positions, or fewer, into documents of at most that
// length. 0 without attention.
Bytes gpu_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest_document,
                  int64_t processors);
// How much more that is than with documents that all have one of these lengths.
Bytes gpu_scratch_beyond(const AttentionHeads& attention, int64_t positions,
                         int64_t longest_document, const std::vector<int64_t>& documents,
                         int64_t processors);

}  // namespace longshore
