// gpu_scratch: memory of GPU kernels that no probe measured: on a GPU that is not installed, or for
// document lengths other than those that were run. Pure functions.
//
// The deterministic backward of FlashAttention (PyTorch's mha_varlen_bwd) allocates fp32 sums of
// the queries' gradients, one set per processor that the heads and documents of a call leave idle,
// with 128 rows of padding per document, and gradients of keys and values for all heads in 2 bytes.
// gpu_attention.h gives the number of documents per call.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "model/unit.h"

namespace longshore {

// Streaming multiprocessors of the largest GPU that is planned for without probing it: 82 on an RTX
// 3090, 108 on an A100, 128 on an RTX 4090, 132 on an H100, 170 on an RTX 5090, 188 on an RTX PRO
// 6000.
inline constexpr int64_t kMostProcessors = 188;

// The parts of a unit whose memory differs on a GPU.
struct GpuWork {
  AttentionHeads attention;
  int64_t positions_at_once = 0;  // positions in one chunk of a head
  Bytes of_position = 0;          // bytes of one position in a chunk
};
GpuWork gpu_work(const UnitCode& unit, DType compute);

// Returns the bytes of a head's chunk on a GPU, which is larger than on the CPU.
Bytes gpu_chunk_bytes(const GpuWork& work, int64_t positions);

// Returns the largest scratch over all splits of at most `positions` positions into documents of at
// most `longest_document`. 0 without attention.
Bytes gpu_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest_document,
                  int64_t processors);
// Returns by how much that exceeds the scratch for equal documents of one of these lengths.
Bytes gpu_scratch_beyond(const AttentionHeads& attention, int64_t positions,
                         int64_t longest_document, const std::vector<int64_t>& documents,
                         int64_t processors);

}  // namespace longshore
