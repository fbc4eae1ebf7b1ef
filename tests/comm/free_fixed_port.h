// free_fixed_port(): a port for a store that another process will serve. Test code.
#pragma once

#include <unistd.h>

#include <cstdint>

#include "base/errors.h"
#include "comm/store/store_server.h"

namespace longshore {

// The port is free now and below the range that the system gives out, so it stays free until it is
// used; each process gets another one.
inline uint16_t free_fixed_port() {
  constexpr int kFirst = 12'000, kCount = 20'000;
  for (int i = 0;; ++i) {
    const auto port = static_cast<uint16_t>(kFirst + (::getpid() * 7 + i) % kCount);
    try {
      const StoreServer probe({.port = port});
      return port;
    } catch (const ConfigError&) {
      if (i == 100) throw;
    }
  }
}

}  // namespace longshore
