// 64 bits that nobody can foresee, for keys and names that must be nobody else's. Nothing that a
// run computes may depend on them. Any thread.
#pragma once

#include <cstdint>

namespace longshore {

uint64_t random_word();

}  // namespace longshore
