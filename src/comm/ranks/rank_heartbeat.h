// RankHeartbeat: the state that a rank's watchdog publishes in the rendezvous store at every
// heartbeat. The other ranks' watchdogs see in it which rank died, hangs or disagrees. Plain value.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace longshore {

// A rank's progress in one group of ranks. An operation is a collective; every rank of the group
// counts them alike.
struct GroupBeat {
  int64_t issued = 0;    // sequence number of the last operation issued
  int64_t running = 0;   // sequence number of the last operation begun
  bool finished = true;  // whether the operation `running` has finished
  std::string text;      // describes the operation `running`, for messages
};

struct RankHeartbeat {
  int64_t number = 0;                       // grows with every heartbeat
  bool leaving = false;                     // finished and about to exit
  bool knows_failure = false;               // knows that the run has failed
  std::map<std::string, GroupBeat> groups;  // by the group's key

  std::string to_json() const;
  // Throws StoreError for invalid text.
  static RankHeartbeat from_json(const std::string& text);
};

}  // namespace longshore
