// Operation: one collective of one rank, in words: for errors, for the watchdog, and for the tags
// that keep operations which do not belong together from meeting. Plain value.
#pragma once

#include <cstdint>
#include <string>

#include "comm/operations/communicator.h"

namespace longshore {

struct Operation {
  CommKind kind = CommKind::kBarrier;
  OpLabel label;
  std::string group;     // its name
  int64_t sequence = 0;  // in the group, from 1
  Bytes bytes = 0;
  std::string detail = {};  // "BF16", "from 2"; empty where there is none

  // "all_gather #41 of parameters, unit 3 (4096 bytes) in group shards": the same on all its ranks.
  std::string text() const;
  // [Note: tags] of collectives.h.
  uint32_t tag() const;
};

}  // namespace longshore
