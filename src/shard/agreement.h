// Agreement: a small all-reduce by which ranks decide together. Each rank gives a few integers and
// gets the least and the greatest of each. It is all that a tier's commit needs of a communicator.
// A call is collective: every rank makes it, in the same order.
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

// The agreement of a run with one rank.
class SoloAgreement final : public Agreement {
 public:
  Outcome reduce(const Ballot& mine) override { return {mine, mine}; }
};

}  // namespace longshore
