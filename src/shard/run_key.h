// RunKey: 128 random bits of a run, made when its state is: what a tier that outlives the process
// tells one run's state from another's by.
#pragma once

#include <array>
#include <cstdint>

namespace longshore {

struct RunKey {
  std::array<uint64_t, 2> bits{};
  bool operator==(const RunKey&) const = default;
};

}  // namespace longshore
