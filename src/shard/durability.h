// The step that a tier commits, the run that it belongs to, the agreement of ranks
// about it, and the bytes that moved for it. Plain values and one interface.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace longshore {

// DurableStep: a step that a tier makes durable. DurablePoint: a committed step that outlives the
// process. Plain values.

struct DurableStep {
  int64_t step = 0;
  std::string note;  // payload of the run: data cursor, generator, counters
};

struct DurablePoint {
  uint64_t sequence = 0;  // number of earlier commits; skipped steps commit too
  uint64_t version = 0;   // number of earlier changes of the state
  int64_t step = 0;
  std::string note;
};

// RunKey: 128 random bits, made together with a run's state. A tier that outlives the process uses
// them to tell the states of different runs apart. Plain value.

struct RunKey {
  std::array<uint64_t, 2> bits{};
  bool operator==(const RunKey&) const = default;
};

// Agreement: a small all-reduce by which ranks decide together. Each rank gives a few integers and
// gets the least and the greatest of each. It is all that a tier's commit needs of a communicator.
// A call is collective: every rank makes it, in the same order.

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

// DriveTraffic: the bytes that a rank moves between memory and drives, and reads from the model's
// files. Plain value.

struct DriveTraffic {
  Bytes read = 0;
  Bytes written = 0;
  Bytes files = 0;  // frozen parameters, read from the model's files
  DriveTraffic& operator+=(const DriveTraffic& other) {
    read += other.read;
    written += other.written;
    files += other.files;
    return *this;
  }
};

}  // namespace longshore
