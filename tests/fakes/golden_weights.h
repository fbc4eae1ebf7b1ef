// Golden models whose folders hold no weights: weights.json says how they are drawn. Test code; any
// thread but the first call of each model.
#pragma once

#include <string>

namespace longshore {

// Returns a folder with the files of a golden case and its weights: the case's own, or a copy in a
// temporary folder of this process that has model.safetensors too. tests/parity/weights.py has the
// rule; a sum in weights.json makes sure that both draw the same bits.
std::string with_weights(const std::string& golden_case);

}  // namespace longshore
