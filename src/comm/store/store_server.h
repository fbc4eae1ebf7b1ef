// StoreServer: serves the run's key-value store to clients that know the run's secret. The launcher
// or rank 0 owns it. A single thread waits for all sockets at once, so that no client can block
// other clients or the destructor.
//
// Everything is bounded: unauthenticated connections and their time, clients, keys, values, stored
// bytes, and buffered bytes of messages.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"

namespace longshore {

struct StoreLimits {
  // The number of unauthenticated connections; a new one evicts the oldest.
  size_t strangers = 256;
  // The time from accepting a connection to its proof.
  std::chrono::milliseconds hello_time = std::chrono::seconds(10);
  size_t clients = 1 << 15;
  size_t keys = 1 << 18;
  Bytes stored = 512 * kMiB;
  // The bytes of incomplete requests and unsent replies over all clients. Beyond it, the client
  // with the most is disconnected.
  Bytes under_way = 512 * kMiB;
};

struct StoreServerOptions {
  uint16_t port = 0;  // 0: any that is free
  // A numeric address of this host to listen on; empty: all addresses.
  std::string address = "127.0.0.1";
  // With an empty secret, any process that can connect is a client.
  std::string secret = {};
  StoreLimits limits = {};
};

// A snapshot of the server's usage.
struct StoreUse {
  size_t strangers = 0;
  size_t clients = 0;
  size_t keys = 0;
  Bytes stored = 0;
  Bytes under_way = 0;

  // Describes it: "3 clients, 40 keys, 12345 bytes".
  std::string text() const;
};

class StoreServer {
 public:
  // Throws ConfigError if the port is taken.
  explicit StoreServer(const StoreServerOptions& options);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  // Closes all connections and ends the thread.
  ~StoreServer();

  uint16_t port() const;
  // Returns the peak of each value. Any thread.
  StoreUse most_used() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace longshore
