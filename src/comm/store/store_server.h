// StoreServer: serves the run's key-value store, where ranks meet, to the clients that know the
// run's secret. Owned by the launcher or by rank 0. One thread of its own waits for all sockets at
// once and for none of them in particular: whatever a client sends, or does not, the others are
// served and the destructor returns.
//
// Everything is bounded: how many connections have not proved the secret and for how long, the
// clients, keys, values, stored bytes, and bytes of messages under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"

namespace longshore {

struct StoreLimits {
  // Connections that have not proved the secret: the oldest one goes where another comes.
  size_t strangers = 256;
  // From accepting a connection to the proof.
  std::chrono::milliseconds hello_time = std::chrono::seconds(10);
  size_t clients = 1 << 15;
  size_t keys = 1 << 18;
  Bytes stored = 512 * kMiB;
  // Bytes that clients have sent and that are no whole message yet, and replies that they have not
  // taken: the client with most of them is disconnected.
  Bytes under_way = 512 * kMiB;
};

struct StoreServerOptions {
  uint16_t port = 0;  // 0: any that is free
  // A numeric address of this host to listen at; empty: all of them.
  std::string address = "127.0.0.1";
  // Empty: whoever can connect is a client.
  std::string secret = {};
  StoreLimits limits = {};
};

// What the server holds at a moment.
struct StoreUse {
  size_t strangers = 0;
  size_t clients = 0;
  size_t keys = 0;
  Bytes stored = 0;
  Bytes under_way = 0;

  // "3 clients, 40 keys, 12345 bytes"
  std::string text() const;
};

class StoreServer {
 public:
  // ConfigError where the port is taken.
  explicit StoreServer(const StoreServerOptions& options);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  // Closes all connections.
  ~StoreServer();

  uint16_t port() const;
  // The most of each that the server has held at once. Any thread.
  StoreUse most_used() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace longshore
