// Random init: the values of `init = "random"` from seed, tensor name and element alone, so that
// any rank can make any part of any tensor. Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shard/unit_spec.h"

namespace longshore {

// Fills `values` with elements element_begin .. element_begin + values.size() of the tensor.
// Normal values come from Philox (key: seed and name; counter: element / 4) by Box-Muller.
void fill_random(std::string_view name, const InitSpec& init, uint64_t seed, int64_t element_begin,
                 std::span<float> values);

}  // namespace longshore
