// Agreement: how ranks decide together: each gives a few integers, all get the least and the
// greatest of each. What a tier's commit asks of a communicator, and all that it asks. A call
// is collective: every rank makes it, in the same order.
#pragma once

#include <array>
#include <cstdint>

namespace longshore {

using Ballot = std::array<int64_t, 4>;

struct Outcome {
  Ballot least{};
  Ballot greatest{};
  bool unanimous(size_t index) const { return least[index] == greatest[index]; }
};

class Agreement {
 public:
  virtual ~Agreement() = default;
  virtual Outcome reduce(const Ballot& mine) = 0;
};

// One rank agrees with itself.
class SoloAgreement final : public Agreement {
 public:
  Outcome reduce(const Ballot& mine) override { return {mine, mine}; }
};

}  // namespace longshore
