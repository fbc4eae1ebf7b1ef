// LibTorch's store interface over the run's own store, for Gloo; and access to
// LibTorch's store in torchrun's agent. Any process can read and write the agent's store, so it
// only carries the address of the run's store. Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/store/store.h"

namespace longshore {

// Waits for keys fail after `timeout`.
c10::intrusive_ptr<c10d::Store> make_torch_store(const StoreConnection& connection,
                                                 std::chrono::milliseconds timeout);

// The store of torchrun's agent.
class AgentStore {
 public:
  // Throws StoreError if the agent does not answer in time.
  AgentStore(const StoreAddress& address, std::chrono::milliseconds timeout);
  ~AgentStore();

  void publish(const std::string& key, const StoreAddress& address);
  // Returns false if the key holds no valid address.
  bool find(const std::string& key, StoreAddress& address);

 private:
  // Silences LibTorch's stack traces of failed connections; the thrown errors report them.
  int former_log_level_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace longshore
