// GlooTransport: messages over TCP, through LibTorch's Gloo. LibTorch ships Gloo's code without its
// headers; the distribution's headers give the declarations, and gloo_transport.cpp is the one file
// that includes them: types of theirs cross no other border.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/collectives/transport.h"
#include "comm/store/store.h"

namespace longshore {

struct GlooOptions {
  std::string prefix;   // of this group's keys in the store
  int32_t index = 0;    // of this rank in the group
  int32_t size = 0;     // of the group
  std::string address;  // of this host, as the others reach it
  std::chrono::milliseconds timeout = {};
};

// Connects to all others of the group; blocks until they are there, at most for the time-out.
std::unique_ptr<Transport> connect_gloo(const StoreConnection& store, const GlooOptions& options);

}  // namespace longshore
