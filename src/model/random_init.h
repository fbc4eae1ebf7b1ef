// random_init: values of `init = "random"`. They depend only on seed, tensor name and element, so
// any rank can make any part of any tensor. Pure functions, no LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shard/unit_spec.h"

namespace longshore {

// Fills `values` with the tensor's elements from element_begin on. Normal values come from Philox
// (key: seed and name; counter: element / 4) by Box-Muller.
void fill_random(std::string_view name, const InitSpec& init, uint64_t seed, int64_t element_begin,
                 std::span<float> values);

}  // namespace longshore
