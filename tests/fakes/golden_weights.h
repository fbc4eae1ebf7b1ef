// Golden models whose folders hold no weights: weights.json says how they are drawn. Test code; any
// thread but the first call of each model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace longshore {

// Returns the values of tensor `number`, whose recipe is [shape, mean, deviation] or [shape, mean,
// deviation, first].
std::vector<float> draw_golden(uint32_t key, uint32_t number, const Json& recipe);

// Returns a folder with the files of a golden case and its weights: the case's own, or a copy in a
// temporary folder of this process that has model.safetensors too. tests/parity/weights.py has the
// rule; a sum in weights.json makes sure that both draw the same bits.
std::string with_weights(const std::string& golden_case);

}  // namespace longshore
