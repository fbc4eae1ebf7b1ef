// Rank sums: the arithmetic of reductions over ranks. Sums are sequential in the order of ranks, so
// all ranks get the same bits. Pure functions over spans.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longshore {

// Rounds to nearest even.
void to_bf16(std::span<const float> values, std::span<uint16_t> rounded);

// Computes own[i] = (((rank 0 + rank 1) + rank 2) + ...). `own` has the values of rank `own_index`;
// `others` has those of the other ranks, in rank order.
void add_in_rank_order(std::span<float> own, size_t own_index,
                       const std::vector<std::span<const float>>& others);
// Sums bf16 values in fp32, in the order of ranks; the own values are rounded like the others'.
void add_in_rank_order(std::span<float> own, size_t own_index,
                       const std::vector<std::span<const uint16_t>>& others);

}  // namespace longshore
