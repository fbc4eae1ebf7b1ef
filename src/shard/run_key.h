// RunKey: 128 random bits, made together with a run's state. A tier that outlives the process uses
// them to tell the states of different runs apart. Plain value.
#pragma once

#include <array>
#include <cstdint>

namespace longshore {

struct RunKey {
  std::array<uint64_t, 2> bits{};
  bool operator==(const RunKey&) const = default;
};

}  // namespace longshore
