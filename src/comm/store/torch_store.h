// TorchStore: LibTorch's interface of stores, for Gloo, over a connection to the run's own store;
// and LibTorch's own store, which torchrun's agent serves and which anybody can read and write: it
// carries the address of the run's store and nothing else. Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/store/store.h"

namespace longshore {

// Waits for keys end after `timeout`.
c10::intrusive_ptr<c10d::Store> make_torch_store(const StoreConnection& connection,
                                                 std::chrono::milliseconds timeout);

// The store of torchrun's agent.
class AgentStore {
 public:
  // StoreError where it is not there in time.
  AgentStore(const StoreAddress& address, std::chrono::milliseconds timeout);
  ~AgentStore();

  void publish(const std::string& key, const StoreAddress& address);
  // False where nothing, or no address, stands there.
  bool find(const std::string& key, StoreAddress& address);

 private:
  // LibTorch writes stack traces of connections that fail; the errors thrown here say it.
  int former_log_level_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace longshore
