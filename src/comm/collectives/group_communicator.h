// GroupCommunicator: the collectives of a group over a Transport, run in order on its own thread.
// The caller that got it from a World owns it and calls it from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/transport.h"
#include "comm/operations/communicator.h"
#include "comm/operations/operation.h"
#include "comm/store/serial_queue.h"
#include "comm/watchdog/watchdog.h"

namespace longshore {

// Collectives over a Transport: every rank of the group exchanges with every other directly. A
// reduction sends each rank the values of its part and adds them there, in the order of ranks; that
// is half the traffic of an all-reduce. Blocking functions; a communicator's thread calls them.
//
// [Note: tags] The tag of an operation's messages is a hash of its sequence number and description,
// so that messages of different operations never match. Ranks that disagree wait, and the watchdog
// reports why. Messages with one tag between two ranks keep their order.

// One operation of a rank: the group's transport, the rank's index in the group, the group's size
// and the tag of the operation's first message.
struct Exchange {
  Transport* transport = nullptr;
  int32_t index = 0;
  int32_t size = 1;
  uint32_t tag = 0;
};

// These functions do the operations of Communicator (comm/operations/communicator.h), which says
// what segments, wire dtype and scratch are; `meet` is its barrier.
void all_gather_bytes(Exchange exchange, const Communicator::Segments& segments);
void reduce_scatter_sums(Exchange exchange, const Communicator::FloatSegments& segments, DType wire,
                         std::span<std::byte> scratch);
void all_reduce_sums(Exchange exchange, const Communicator::FloatSegments& segments, DType wire,
                     std::span<std::byte> scratch);
void all_reduce_scalars(Exchange exchange, std::span<double> values);
void broadcast_bytes(Exchange exchange, std::span<std::byte> bytes, int32_t root);
void meet(Exchange exchange);

struct GroupOptions {
  std::string name;
  std::vector<int32_t> members;  // ranks, in the group's order
  int32_t rank = 0;              // this process's rank, a member
  std::chrono::milliseconds timeout = {};
};

// Returns the group's name in the run: "shards[0,1]".
std::string group_key(const std::string& name, const std::vector<int32_t>& members);

class GroupCommunicator : public Communicator {
 public:
  // `connect` makes the transport; the communicator's thread calls it.
  using Connect = std::function<std::unique_ptr<Transport>()>;
  GroupCommunicator(GroupOptions options, std::shared_ptr<Watchdog> watchdog, Connect connect);
  ~GroupCommunicator() override;

  const std::string& name() const override { return options_.name; }
  int32_t size() const override { return static_cast<int32_t>(options_.members.size()); }
  int32_t index() const override { return index_; }

  Completion all_gather(Segments segments, const OpLabel& label) override;
  Completion reduce_scatter(FloatSegments segments, DType wire, std::span<std::byte> scratch,
                            const OpLabel& label) override;
  Completion all_reduce(FloatSegments segments, DType wire, std::span<std::byte> scratch,
                        const OpLabel& label) override;
  Completion all_reduce(std::span<double> values, const OpLabel& label) override;
  Completion broadcast(std::span<std::byte> bytes, int32_t root, const OpLabel& label) override;
  Completion barrier(const OpLabel& label) override;

  const PayloadCounters& counters() const override { return counters_; }
  PayloadCounters& counters() override { return counters_; }

 private:
  class Pending;
  struct Line;  // the transport, shared with the communicator's thread

  Completion start(CommKind kind, const OpLabel& label, Bytes bytes, const std::string& detail,
                   std::function<void(Exchange)> work);
  [[noreturn]] void fail(SerialQueue::Task& task, const Operation& operation, double waited);
  void wait(SerialQueue::Task& task, const Operation& operation);

  GroupOptions options_;
  int32_t index_ = 0;
  std::string key_;
  std::shared_ptr<Watchdog> watchdog_;
  PayloadCounters counters_;
  int64_t sequence_ = 0;
  std::shared_ptr<Line> line_;
  SerialQueue queue_;
};

}  // namespace longshore
