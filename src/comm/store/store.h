// The client side of the run's key-value store, through which ranks meet (store_server.h
// serves it). Copies of a StoreConnection share one socket. Any thread; calls are serialised, and
// each ends within the connection's time-out plus a few seconds. Calls throw StoreError.
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

// The store's server is gone, does not answer, or refuses the request.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The server and this process have different secrets.
class StoreSecretError : public StoreError {
 public:
  using StoreError::StoreError;
};

struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  std::string text() const { return host + ":" + std::to_string(port); }
};

// Parses "host:port"; returns false if the host is missing or the port is missing or 0.
bool parse_store_address(const std::string& text, StoreAddress& address);

class StoreConnection {
 public:
  // Retries until the store answers or `timeout` has passed. The handshake must succeed.
  StoreConnection(const StoreAddress& address, const std::string& secret,
                  std::chrono::milliseconds timeout)
      : StoreConnection(address, secret, timeout, timeout) {}
  // Retries for `try_time`; later calls have `timeout`.
  StoreConnection(const StoreAddress& address, const std::string& secret,
                  std::chrono::milliseconds timeout, std::chrono::milliseconds try_time);

  void set(const std::string& key, const std::string& value);
  bool has(const std::vector<std::string>& keys);
  // Returns the values of keys that must exist.
  std::vector<std::string> get(const std::vector<std::string>& keys);
  // Sets the key if it holds `expected`, or if it is absent and `expected` is empty. Returns its
  // value afterwards, or `expected` if it is still absent.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value);
  // Sets the key if it is absent; returns its value afterwards.
  std::string set_once(const std::string& key, const std::string& value) {
    return compare_set(key, "", value);
  }
  int64_t add(const std::string& key, int64_t number);
  void append(const std::string& key, const std::string& value);
  // Returns false if the key did not exist.
  bool remove(const std::string& key);
  int64_t count();

 private:
  class Wire;
  // Sends a request and returns its reply of at least `values` values.
  std::vector<std::string> call(const StoreRequest& request, size_t values);

  std::shared_ptr<Wire> wire_;  // shared by the copies
};

}  // namespace longshore
