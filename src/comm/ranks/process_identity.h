// ProcessIdentity: which process a rank is, and how others reach it. Plain value, sent to all ranks
// at start.
#pragma once

#include <cstdint>
#include <string>

#include "comm/store/store.h"

namespace longshore {

struct ProcessIdentity {
  std::string host;
  int64_t pid = 0;
  int64_t start_ticks = 0;    // tells the process from a later one with its number
  std::string pid_space;      // boot and namespace in which the pid means something
  std::string address;        // by which this host reached the store
  std::string store_address;  // the store's, as this host resolved it
  std::string token;          // nobody else's
  // As the launcher says; 0 ranks where it does not.
  int32_t local_rank = 0;
  int32_t local_size = 0;
  int32_t node = 0;

  // "host gpu1, process 1234"
  std::string text() const;
  std::string to_json() const;
  // StoreError for a text that is none.
  static ProcessIdentity from_json(const std::string& text);
};

// This process. ConfigError where the store's host cannot be resolved.
ProcessIdentity identify_process(const StoreAddress& store);

// Whether a process that runs where this one does is surely gone. False for others.
bool process_is_gone(const ProcessIdentity& process, const ProcessIdentity& self);

bool is_loopback(const std::string& address);

}  // namespace longshore
