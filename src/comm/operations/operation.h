// Operation: describes one rank's collective for errors, watchdog and tags. Plain value.
#pragma once

#include <cstdint>
#include <string>

#include "comm/operations/communicator.h"

namespace longshore {

struct Operation {
  CommKind kind = CommKind::kBarrier;
  OpLabel label;
  std::string group;     // the group's name
  int64_t sequence = 0;  // in the group, from 1
  Bytes bytes = 0;
  std::string detail = {};  // "BF16", "from 2"; may be empty

  // Returns the text, equal on all ranks of the group: "all_gather #41 of parameters, unit 3 (4096
  // bytes) in group shards".
  std::string text() const;
  // Returns the hash of the text ([Note: tags] of collectives.h).
  uint32_t tag() const;
};

}  // namespace longshore
