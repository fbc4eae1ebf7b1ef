// Rank sums: the arithmetic of reductions over ranks. Pure functions over spans; sums are taken in
// the order of ranks, one addition after the other, so they are the same bits everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longshore {

// Round to nearest even.
void to_bf16(std::span<const float> values, std::span<uint16_t> rounded);

// own[i] = (((rank 0 + rank 1) + rank 2) + ...), element by element, where `others` are the other
// ranks' values in their order and `own` has rank `own_index`'s.
void add_in_rank_order(std::span<float> own, size_t own_index,
                       const std::vector<std::span<const float>>& others);
// Sums in the order of ranks over bf16 values, in fp32; the own are rounded like the others'.
void add_in_rank_order(std::span<float> own, size_t own_index,
                       const std::vector<std::span<const uint16_t>>& others);

}  // namespace longshore
