// A port for a store that another process will serve. Test code.
#pragma once

#include <unistd.h>

#include <cstdint>

#include "base/errors.h"
#include "comm/store/store_server.h"

namespace longshore {

// Free now, and below the ports that the system deals to whoever asks for any, so that it stays
// free until it is used; another one in each process.
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
