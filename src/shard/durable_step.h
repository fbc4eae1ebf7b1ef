// DurableStep: a step that a tier is asked to make durable; DurablePoint: what it holds of one that
// outlives the process. Plain values.
#pragma once

#include <cstdint>
#include <string>

namespace longshore {

struct DurableStep {
  int64_t step = 0;
  std::string note;  // the run's own: data cursor, generator, counters
};

struct DurablePoint {
  uint64_t sequence = 0;  // commits before this one; skipped steps have theirs
  uint64_t version = 0;   // changes of the state before this one
  int64_t step = 0;
  std::string note;
};

}  // namespace longshore
