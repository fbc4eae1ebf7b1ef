// RankHeartbeat: what a rank says of itself at every heartbeat. Plain value.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace longshore {

// What a rank does in one group.
struct GroupBeat {
  int64_t issued = 0;    // sequence number of the last operation that was asked for
  int64_t running = 0;   // of the last that was begun
  bool finished = true;  // whether that one is done
  std::string text;      // Operation::text() of it
};

struct RankHeartbeat {
  int64_t number = 0;                       // grows with every heartbeat
  bool leaving = false;                     // done, and about to exit
  bool knows_failure = false;               // of the run
  std::map<std::string, GroupBeat> groups;  // by the group's key

  std::string to_json() const;
  // StoreError for a text that is none.
  static RankHeartbeat from_json(const std::string& text);
};

}  // namespace longshore
