// Store: the run's key-value store, where ranks meet: c10d's TCPStore, served by rank 0 or by the
// launcher. A connection belongs to one thread: a call may block for as long as its server does
// not answer, so threads that must go on ask a SerialQueue for it. Calls throw StoreError.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace longshore {

// The store's server is gone or does not answer.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  std::string text() const { return host + ":" + std::to_string(port); }
};

// What a value from the store may be long at most.
inline constexpr Bytes kMaxStoreValue = 16 * kMiB;

class StoreServer {
 public:
  // Port 0: any that is free. ConfigError where the port is taken.
  explicit StoreServer(uint16_t port);
  ~StoreServer();
  uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class StoreConnection {
 public:
  // Tries until the store is there or the time is over.
  StoreConnection(const StoreAddress& address, std::chrono::milliseconds timeout);
  ~StoreConnection();

  void set(const std::string& key, const std::string& value);
  bool has(const std::vector<std::string>& keys);
  // Of keys that exist.
  std::vector<std::string> get(const std::vector<std::string>& keys);
  // Sets the key where it does not exist yet; gives what it holds then.
  std::string set_once(const std::string& key, const std::string& value);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace longshore
