// run_ranks(): runs a world of several ranks in threads of the test, with a store of their own.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/store/store_server.h"
#include "comm/world/world.h"

namespace longshore {

inline WorldOptions quick_options() {
  WorldOptions options;
  options.timeout = std::chrono::seconds(60);
  options.heartbeat = std::chrono::milliseconds(50);
  return options;
}

inline RankInfo rank_of(int32_t rank, int32_t size, uint16_t port) {
  RankInfo info;
  info.rank = info.local_rank = rank;
  info.size = info.local_size = size;
  info.launcher = "launch";
  info.store_host = "127.0.0.1";
  info.store_port = port;
  info.agent_store = true;
  return info;
}

// Runs `body` on every rank; returns what each rank threw.
inline std::vector<std::exception_ptr> run_ranks_catching(
    int32_t size, const std::function<void(World&)>& body,
    const WorldOptions& options = quick_options()) {
  const StoreServer server({});
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto world = World::connect(rank_of(rank, size, server.port()), options);
        body(*world);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Runs `body` on every rank; no rank may fail.
inline void run_ranks(int32_t size, const std::function<void(World&)>& body,
                      const WorldOptions& options = quick_options()) {
  for (const std::exception_ptr& error : run_ranks_catching(size, body, options)) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace longshore
