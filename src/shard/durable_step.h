// DurableStep: a step that a tier makes durable. DurablePoint: a committed step that outlives the
// process. Plain values.
#pragma once

#include <cstdint>
#include <string>

namespace longshore {

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

}  // namespace longshore
