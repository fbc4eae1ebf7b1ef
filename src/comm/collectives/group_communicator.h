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

struct GroupOptions {
  std::string name;
  std::vector<int32_t> members;  // ranks, in the group's order
  int32_t rank = 0;              // this process's rank, a member
  std::chrono::milliseconds timeout = {};
};

// Returns the group's name in the run: "shards[0,1]".
std::string group_key(const std::string& name, const std::vector<int32_t>& members);

// Returns the rank's index in the group. CheckFailure if it is no member.
int32_t index_in_group(const GroupOptions& options);

// Collectives over a Transport: every rank of the group exchanges with every other directly. A
// reduction sends each rank the values of its part and adds them there, in the order of ranks; that
// is half the traffic of an all-reduce.
//
// [Note: tags] The tag of an operation's messages is a hash of its sequence number and description,
// so that messages of different operations never match. Ranks that disagree wait, and the watchdog
// reports why. Messages with one tag between two ranks keep their order.
class GroupCommunicator : public Communicator {
 public:
  // `connect` makes the transport; the communicator's thread calls it.
  using Connect = std::function<std::unique_ptr<Transport>()>;
  GroupCommunicator(GroupOptions options, std::shared_ptr<Watchdog> watchdog, Connect connect);
  ~GroupCommunicator() override;

 protected:
  Completion start(const Collective& collective) override;

 private:
  class Pending;
  struct Line;  // the transport, shared with the communicator's thread

  [[noreturn]] void fail(SerialQueue::Task& task, const Operation& operation, double waited);
  void wait(SerialQueue::Task& task, const Operation& operation);

  GroupOptions options_;
  std::string key_;
  std::shared_ptr<Watchdog> watchdog_;
  int64_t sequence_ = 0;
  std::shared_ptr<Line> line_;
  SerialQueue queue_;
};

}  // namespace longshore
