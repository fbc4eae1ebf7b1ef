// Store: the run's key-value store, where ranks meet, as its clients see it; store_server.h serves
// it. Copies of a StoreConnection share one socket. Any thread: calls wait for each other, and each
// ends within the connection's time-out or somewhat later. Calls throw StoreError.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "comm/store/store_messages.h"

namespace longshore {

// The store's server is gone, does not answer, or refuses what was asked.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The server and this process do not have the same secret.
class StoreSecretError : public StoreError {
 public:
  using StoreError::StoreError;
};

struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  std::string text() const { return host + ":" + std::to_string(port); }
};

// "host:port", where both are there and the port is not 0.
bool parse_store_address(const std::string& text, StoreAddress& address);

class StoreConnection {
 public:
  // Tries until the store is there or the time is over; whoever answers there otherwise is not it.
  StoreConnection(const StoreAddress& address, const std::string& secret,
                  std::chrono::milliseconds timeout)
      : StoreConnection(address, secret, timeout, timeout) {}
  // Tries for `try_time`; calls have `timeout`.
  StoreConnection(const StoreAddress& address, const std::string& secret,
                  std::chrono::milliseconds timeout, std::chrono::milliseconds try_time);

  void set(const std::string& key, const std::string& value);
  bool has(const std::vector<std::string>& keys);
  // Of keys that exist.
  std::vector<std::string> get(const std::vector<std::string>& keys);
  // Sets the key where it is absent and `expected` is empty, or where it holds that; gives what it
  // holds then, and `expected` where it is absent.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value);
  // Sets the key where it does not exist yet; gives what it holds then.
  std::string set_once(const std::string& key, const std::string& value) {
    return compare_set(key, "", value);
  }
  int64_t add(const std::string& key, int64_t number);
  void append(const std::string& key, const std::string& value);
  // False where it did not exist.
  bool remove(const std::string& key);
  int64_t count();

 private:
  class Wire;
  // At least `values` values.
  std::vector<std::string> call(const StoreRequest& request, size_t values);

  std::shared_ptr<Wire> wire_;  // shared by the copies
};

}  // namespace longshore
