// ProcessIdentity: a rank's process and address, sent to all ranks at start. Plain value.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "comm/store/store.h"

namespace longshore {

struct ProcessIdentity {
  std::string host;
  int64_t pid = 0;
  int64_t start_ticks = 0;    // start time: distinguishes a later process with the same pid
  std::string pid_space;      // boot id and pid namespace in which the pid is valid
  std::string address;        // this host's address on the route to the store
  std::string store_address;  // the store's address, as this host resolved it
  std::string token;          // a random value, unique to the process
  // The launcher's values; local_size is 0 if it gives none.
  int32_t local_rank = 0;
  int32_t local_size = 0;
  int32_t node = 0;

  // Describes the process: "host gpu1, process 1234".
  std::string text() const;
  std::string to_json() const;
  // Throws StoreError for invalid text.
  static ProcessIdentity from_json(const std::string& text);
};

// Returns "rank 2 (host gpu1, process 1234)".
std::string rank_text(int32_t rank, const ProcessIdentity& identity);

// Identifies this process. Throws ConfigError if the store's host cannot be resolved.
ProcessIdentity identify_process(const StoreAddress& store);

// Returns true if the process is in this one's pid namespace and surely gone.
bool process_is_gone(const ProcessIdentity& process, const ProcessIdentity& self);

bool is_loopback(const std::string& address);

// RankHeartbeat: the state that a rank's watchdog publishes in the rendezvous store at every
// heartbeat. The other ranks' watchdogs see in it which rank died, hangs or disagrees. Plain value.

// A rank's progress in one group of ranks. An operation is a collective; every rank of the group
// counts them alike.
struct GroupBeat {
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
