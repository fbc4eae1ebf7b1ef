#include "comm/collectives/group_communicator.h"

#include <algorithm>
#include <utility>

#include "base/awake_clock.h"
#include "base/errors.h"
#include "base/measurement.h"
#include "base/mutex.h"
#include "base/texts.h"
#include "comm/collectives/rank_sums.h"
#include "comm/operations/operation.h"

namespace longshore {
namespace {

// The functions of this part block; a communicator's thread calls them.

// One operation of a rank: the group's transport, the rank's index in the group, the group's size
// and the tag of the operation's first message.
struct Exchange {
  Transport* transport = nullptr;
  int32_t index = 0;
  int32_t size = 1;
  uint32_t tag = 0;
};

// A rank's part of a reduction: pieces of the segments, end to end.
using Part = std::vector<std::span<float>>;

// Returns the pieces of at most `count` elements from element `begin` on.
Part slice(const Part& part, int64_t begin, int64_t count) {
  Part found;
  for (const std::span<float>& piece : part) {
    const auto length = static_cast<int64_t>(piece.size());
    const int64_t from = std::clamp<int64_t>(begin, 0, length);
    const int64_t to = std::clamp<int64_t>(begin + count, 0, length);
    if (to > from) {
      found.push_back(piece.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)));
    }
    begin -= length;
  }
  return found;
}

int64_t elements_of(const Part& part) {
  int64_t elements = 0;
  for (const auto& piece : part) elements += static_cast<int64_t>(piece.size());
  return elements;
}

// The messages of one round, and the buffers that receive the other ranks' values.
struct Round {
  Part mine;
  std::vector<std::span<std::byte>> slots;  // one for each other rank, in rank order
  std::unique_ptr<PendingTransfer> transfer;
};

// Sends every rank its part and adds the received values, in rounds that share the scratch.
class Reduction {
 public:
  Reduction(Exchange exchange, std::vector<Part> parts, DType wire, std::span<std::byte> scratch)
      : exchange_(exchange), parts_(std::move(parts)), wire_(wire), scratch_(scratch) {
    for (const Part& part : parts_) {
      largest_ = std::max(largest_, elements_of(part));
      most_pieces_ = std::max(most_pieces_, part.size());
    }
    overlapped_ = largest_ > 2 * kRoundElements;
    window_ = overlapped_ ? kRoundElements : largest_;
  }

  void run() {
    if (largest_ == 0) return;
    const int64_t rounds = (largest_ + window_ - 1) / window_;
    Round current = start(0);
    for (int64_t i = 0; i < rounds; ++i) {
      // The next round travels while this one is added.
      Round next = i + 1 < rounds ? start(i + 1) : Round{};
      current.transfer->finish();
      current.transfer.reset();
      add(current);
      current = std::move(next);
    }
  }

 private:
  // [Note: reduce scratch] Each half (there are one or two) has, for every other rank, window_
  // received fp32 values, or window_ sent and window_ received bf16 values.
  std::span<std::byte> slot(int64_t round, int32_t other, bool outgoing) const {
    const auto stride = static_cast<size_t>(window_) * sizeof(float);
    const int64_t half = overlapped_ ? round % 2 : 0;
    const auto at = static_cast<size_t>(half * (exchange_.size - 1) + other) * stride;
    const auto in_slot = scratch_.subspan(at, stride);
    if (wire_ == DType::kF32) return in_slot;
    return outgoing ? in_slot.first(stride / 2) : in_slot.last(stride / 2);
  }

  Round start(int64_t i) {
    Round round;
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    round.mine = slice(parts_[static_cast<size_t>(exchange_.index)], i * window_, window_);
    int32_t other = 0;
    for (int32_t peer = 0; peer < exchange_.size; ++peer) {
      if (peer == exchange_.index) continue;
      const Part theirs = slice(parts_[static_cast<size_t>(peer)], i * window_, window_);
      send(peer, theirs, slot(i, other, true), outgoing);
      round.slots.push_back(receive(peer, round.mine, slot(i, other, false), incoming));
      ++other;
    }
    // The pieces of a round have distinct tags.
    const auto pieces = static_cast<uint32_t>(most_pieces_ + 1);
    round.transfer = exchange_.transport->start(outgoing, incoming,
                                                exchange_.tag + static_cast<uint32_t>(i) * pieces);
    return round;
  }

  void send(int32_t peer, const Part& theirs, std::span<std::byte> slot,
            std::vector<Outgoing>& outgoing) const {
    if (wire_ == DType::kF32) {
      for (const auto& piece : theirs) outgoing.push_back({peer, std::as_bytes(piece)});
      return;
    }
    auto* rounded = reinterpret_cast<uint16_t*>(slot.data());
    size_t filled = 0;
    for (const auto& piece : theirs) {
      to_bf16(piece, {rounded + filled, piece.size()});
      filled += piece.size();
    }
    if (filled > 0) outgoing.push_back({peer, slot.first(filled * sizeof(uint16_t))});
  }

  std::span<std::byte> receive(int32_t peer, const Part& mine, std::span<std::byte> slot,
                               std::vector<Incoming>& incoming) const {
    size_t filled = 0;
    for (const auto& piece : mine) {
      const size_t bytes = piece.size() * static_cast<size_t>(width_of(wire_));
      if (wire_ == DType::kF32) incoming.push_back({peer, slot.subspan(filled, bytes)});
      filled += bytes;
    }
    if (wire_ == DType::kBF16 && filled > 0) incoming.push_back({peer, slot.first(filled)});
    return slot.first(filled);
  }

  template <typename Wire>
  void add_as(const Round& round) const {
    size_t done = 0;
    std::vector<std::span<const Wire>> others;
    for (const auto& piece : round.mine) {
      others.clear();
      for (const auto& slot : round.slots) {
        others.push_back({reinterpret_cast<const Wire*>(slot.data()) + done, piece.size()});
      }
      add_in_rank_order(piece, static_cast<size_t>(exchange_.index), others);
      done += piece.size();
    }
  }

  void add(const Round& round) const {
    if (wire_ == DType::kF32) {
      add_as<float>(round);
    } else {
      add_as<uint16_t>(round);
    }
  }

  Exchange exchange_;
  std::vector<Part> parts_;
  DType wire_;
  std::span<std::byte> scratch_;
  int64_t largest_ = 0;
  size_t most_pieces_ = 0;
  int64_t window_ = 0;  // elements of a part that travel in one round
  bool overlapped_ = false;
};

// Cuts all segments, end to end, into near-equal parts, one per rank.
std::vector<Part> near_equal_parts(const Part& whole, int32_t size) {
  const int64_t length = (elements_of(whole) + size - 1) / size;
  std::vector<Part> parts;
  for (int32_t rank = 0; rank < size; ++rank) parts.push_back(slice(whole, rank * length, length));
  return parts;
}

// Cuts each segment into equal parts, one per rank.
template <typename Element>
std::vector<std::vector<std::span<Element>>> equal_parts(
    const std::vector<std::span<Element>>& segments, int32_t ranks) {
  const auto size = static_cast<size_t>(ranks);
  std::vector<std::vector<std::span<Element>>> parts(size);
  for (const auto& segment : segments) {
    const size_t part = segment.size() / size;
    for (size_t rank = 0; rank < size; ++rank) {
      parts[rank].push_back(segment.subspan(rank * part, part));
    }
  }
  return parts;
}

// Sends each rank's pieces to all others; `parts` has the pieces by rank.
void share(Exchange exchange, const std::vector<std::vector<std::span<std::byte>>>& parts) {
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int32_t peer = 0; peer < exchange.size; ++peer) {
    if (peer == exchange.index) continue;
    for (const auto& piece : parts[static_cast<size_t>(exchange.index)]) {
      if (!piece.empty()) outgoing.push_back({peer, piece});
    }
    for (const auto& piece : parts[static_cast<size_t>(peer)]) {
      if (!piece.empty()) incoming.push_back({peer, piece});
    }
  }
  exchange.transport->start(outgoing, incoming, exchange.tag)->finish();
}

// The first tag of an all-reduce's second half; it is above all tags of the first half.
constexpr uint32_t kSecondHalf = 1u << 30;

void all_gather_bytes(Exchange exchange, const Communicator::Segments& segments) {
  share(exchange, equal_parts(segments, exchange.size));
}

void all_reduce_sums(Exchange exchange, const Collective& collective) {
  const std::vector<Part> parts = near_equal_parts(collective.as<float>(), exchange.size);
  Reduction(exchange, parts, collective.wire, collective.scratch).run();
  std::vector<std::vector<std::span<std::byte>>> bytes;
  for (const Part& part : parts) {
    std::vector<std::span<std::byte>>& pieces = bytes.emplace_back();
    for (const auto& piece : part) pieces.push_back(std::as_writable_bytes(piece));
  }
  exchange.tag += kSecondHalf;
  share(exchange, bytes);
}

void all_reduce_scalars(Exchange exchange, std::span<double> values) {
  const auto size = static_cast<size_t>(exchange.size);
  std::vector<double> all(values.size() * size);
  std::copy(values.begin(), values.end(),
            all.begin() + static_cast<int64_t>(values.size()) * exchange.index);
  all_gather_bytes(exchange, {std::as_writable_bytes(std::span(all))});
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = all[i];
    for (size_t rank = 1; rank < size; ++rank) values[i] += all[rank * values.size() + i];
  }
}

void broadcast_bytes(Exchange exchange, std::span<std::byte> bytes, int32_t root) {
  if (bytes.empty()) return;
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  if (exchange.index != root) incoming.push_back({root, bytes});
  for (int32_t peer = 0; exchange.index == root && peer < exchange.size; ++peer) {
    if (peer != root) outgoing.push_back({peer, bytes});
  }
  exchange.transport->start(outgoing, incoming, exchange.tag)->finish();
}

void run_collective(Exchange exchange, const Collective& collective) {
  std::vector<std::byte> marks;
  switch (collective.kind) {
    case CommKind::kAllGather:
      return all_gather_bytes(exchange, collective.segments);
    case CommKind::kReduceScatter:
      return Reduction(exchange, equal_parts(collective.as<float>(), exchange.size),
                       collective.wire, collective.scratch)
          .run();
    case CommKind::kAllReduce:
      return all_reduce_sums(exchange, collective);
    case CommKind::kScalars:
      return all_reduce_scalars(exchange, collective.as<double>()[0]);
    case CommKind::kBroadcast:
      return broadcast_bytes(exchange, collective.segments[0], collective.root);
    case CommKind::kBarrier:
      marks.resize(static_cast<size_t>(exchange.size));
      return all_gather_bytes(exchange, {marks});
  }
}

using Clock = AwakeClock;
using std::chrono::milliseconds;

// The interval at which a wait checks for a failed run. A finished operation wakes it at once.
constexpr milliseconds kLook(20);
// The time that aborted transfers get to release their buffers.
constexpr std::chrono::seconds kAbortTime(2);

}  // namespace

std::string group_key(const std::string& name, const std::vector<int32_t>& members) {
  return name + "[" + joined(members, ",") + "]";
}

int32_t index_in_group(const GroupOptions& options) {
  const auto place = std::ranges::find(options.members, options.rank);
  LONGSHORE_CHECK(place != options.members.end())
      << "rank " << options.rank << " is not in " << group_key(options.name, options.members);
  return static_cast<int32_t>(place - options.members.begin());
}

// The communicator's thread makes the transport and uses it; other threads may abort it.
struct GroupCommunicator::Line {
  Mutex mutex;
  std::unique_ptr<Transport> transport LONGSHORE_GUARDED_BY(mutex);
  bool aborted LONGSHORE_GUARDED_BY(mutex) = false;

  void connect(const Connect& connect) {
    std::unique_ptr<Transport> made = connect();
    const MutexLock lock(mutex);
    transport = std::move(made);
    if (aborted) transport->abort();
  }
  Transport* get() {
    const MutexLock lock(mutex);
    return transport.get();
  }
  void abort() noexcept {
    const MutexLock lock(mutex);
    aborted = true;
    if (transport) transport->abort();
  }
};

class GroupCommunicator::Pending : public Completion::State {
 public:
  Pending(GroupCommunicator* owner, std::shared_ptr<SerialQueue::Task> task, Operation operation)
      : owner_(owner), task_(std::move(task)), operation_(std::move(operation)) {}
  void wait() override { owner_->wait(*task_, operation_); }

 private:
  GroupCommunicator* owner_;
  std::shared_ptr<SerialQueue::Task> task_;
  Operation operation_;
};

GroupCommunicator::GroupCommunicator(GroupOptions options, std::shared_ptr<Watchdog> watchdog,
                                     Connect connect)
    : Communicator(options.name, static_cast<int32_t>(options.members.size()),
                   index_in_group(options)),
      options_(std::move(options)),
      key_(group_key(options_.name, options_.members)),
      watchdog_(std::move(watchdog)),
      line_(std::make_shared<Line>()) {
  watchdog_->join_group(key_, options_.members);
  Operation operation{CommKind::kBarrier, {"connecting", {}}, options_.name, ++sequence_};
  const auto task = queue_.push(
      [line = line_, watchdog = watchdog_, key = key_, operation, connect = std::move(connect)] {
        watchdog->begun(key, operation);
        line->connect(connect);
        watchdog->finished(key, operation.sequence);
      });
  wait(*task, operation);
}

GroupCommunicator::~GroupCommunicator() {
  // Operations that no thread waits for any more must not block the communicator's thread.
  if (watchdog_->has_failure()) line_->abort();
}

Completion GroupCommunicator::start(const Collective& collective) {
  check_reduction(collective, size());
  if (size() == 1) return {};
  const bool broadcasts = collective.kind == CommKind::kBroadcast;
  const std::string detail = collective.reduces() ? std::string(name_of(collective.wire))
                             : broadcasts         ? "from " + std::to_string(collective.root)
                                                  : "";
  Operation operation{collective.kind, collective.label,     name(),
                      ++sequence_,     collective.payload(), detail};
  Exchange exchange{nullptr, index(), size(), operation.tag()};
  auto task = queue_.push(
      [line = line_, watchdog = watchdog_, key = key_, operation, exchange, collective]() mutable {
        watchdog->begun(key, operation);
        exchange.transport = line->get();
        run_collective(exchange, collective);
        watchdog->finished(key, operation.sequence);
      });
  return Completion(std::make_unique<Pending>(this, std::move(task), std::move(operation)));
}

void GroupCommunicator::wait(SerialQueue::Task& task, const Operation& operation) {
  const Clock::time_point begin = Clock::now();
  while (!task.wait_for(kLook)) {
    if (watchdog_->has_failure()) fail(task, operation, seconds_since(begin));
    if (Clock::now() - begin > options_.timeout) {
      watchdog_->blame_delay(key_, operation, seconds_since(begin));
      fail(task, operation, seconds_since(begin));
    }
  }
  counters().add_wait(operation.kind, operation.label.unit, seconds_since(begin));
  if (!task.error()) return;
  try {
    std::rethrow_exception(task.error());
  } catch (const TransportError& error) {
    const int32_t peer = options_.members[static_cast<size_t>(error.peer())];
    watchdog_->blame_break(peer, operation, error.what());
  } catch (const StoreError& error) {
    // While connecting, a StoreError means that the store or a member is gone.
    const int32_t peer = options_.members[index() == 0 ? 1 : 0];
    watchdog_->blame_break(peer, operation, error.what());
  }
  fail(task, operation, seconds_since(begin));
}

void GroupCommunicator::fail(SerialQueue::Task& task, const Operation& operation, double waited) {
  const std::string message = watchdog_->message(seconds_text(waited) + " for " + operation.text());
  line_->abort();
  if (!task.wait_for(kAbortTime)) {
    if (line_->get() != nullptr) {
      // The buffers may still be written, so nothing may unwind and free them.
      watchdog_->end_process(message);
    }
    queue_.abandon();  // a connecting communicator has no buffers
  }
  throw CommError(message);
}

}  // namespace longshore
