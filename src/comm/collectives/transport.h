// Transport: moves bytes between the ranks of one group. Messages match by pair of ranks and tag,
// and use the caller's memory directly. One thread starts and finishes transfers; any thread may
// abort. Real runs use connect_gloo; tests have other transports.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/store/store.h"

namespace longshore {

struct Outgoing {
  int32_t peer = 0;  // index in the group
  std::span<const std::byte> bytes;
};
struct Incoming {
  int32_t peer = 0;
  std::span<std::byte> bytes;
};

// A message could not be sent or received.
class TransportError : public std::runtime_error {
 public:
  TransportError(int32_t peer, const std::string& text) : std::runtime_error(text), peer_(peer) {}
  int32_t peer() const { return peer_; }  // the other rank's index in the group

 private:
  int32_t peer_;
};

// Messages in flight. After its destruction, finished or not, it no longer touches their memory.
class PendingTransfer {
 public:
  virtual ~PendingTransfer() = default;
  virtual void finish() = 0;  // TransportError
};

class Transport {
 public:
  virtual ~Transport() = default;
  // On both sides the i-th message to a peer has the tag first_tag + i. Messages are not empty.
  virtual std::unique_ptr<PendingTransfer> start(const std::vector<Outgoing>& outgoing,
                                                 const std::vector<Incoming>& incoming,
                                                 uint32_t first_tag) = 0;
  // Ends all current and later transfers with a TransportError.
  virtual void abort() noexcept = 0;
};

// A Transport over TCP through LibTorch's Gloo. LibTorch ships Gloo's code without headers, so the
// declarations come from the distribution's package. Only transport.cpp includes them; no type of
// theirs crosses this interface.

struct GlooOptions {
  std::string prefix;   // prefix of this group's keys in the store
  int32_t index = 0;    // index of this rank in the group
  int32_t size = 0;     // number of ranks in the group
  std::string address;  // address by which other ranks reach this host
  std::chrono::milliseconds timeout = {};
};

// Connects to all ranks of the group; blocks until all are connected or the time-out passes.
std::unique_ptr<Transport> connect_gloo(const StoreConnection& store, const GlooOptions& options);

}  // namespace longshore
