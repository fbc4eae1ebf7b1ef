// random_word: 64 unpredictable bits for keys and unique names. No result of a run may depend on
// them. Any thread.
#pragma once

#include <cstdint>

namespace longshore {

uint64_t random_word();

}  // namespace longshore
