// GlooTransport: messages over TCP through LibTorch's Gloo. LibTorch ships Gloo's code without
// headers, so the declarations come from the distribution's package. Only gloo_transport.cpp
// includes them; no type of theirs crosses this interface.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/collectives/transport.h"
#include "comm/store/store.h"

namespace longshore {

struct GlooOptions {
  std::string prefix;   // prefix of this group's keys in the store
  int32_t index = 0;    // index of this rank in the group
  int32_t size = 0;     // number of ranks in the group
  std::string address;  // address by which other ranks reach this host
  std::chrono::milliseconds timeout = {};
};

// Connects to all ranks of the group; blocks until all are connected or the time-out passes.
std::unique_ptr<Transport> connect_gloo(const StoreConnection& store, const GlooOptions& options);

}  // namespace longshore
