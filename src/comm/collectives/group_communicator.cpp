#include "comm/collectives/group_communicator.h"

#include <algorithm>
#include <utility>

#include "base/awake_clock.h"
#include "base/errors.h"
#include "base/mutex.h"
#include "comm/operations/operation.h"

namespace longshore {
namespace {

using Clock = AwakeClock;
using std::chrono::milliseconds;

// The interval at which a wait checks for a failed run. A finished operation wakes it at once.
constexpr milliseconds kLook(20);
// The time that aborted transfers get to release their buffers.
constexpr std::chrono::seconds kAbortTime(2);

double seconds_since(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

}  // namespace

std::string group_key(const std::string& name, const std::vector<int32_t>& members) {
  std::string key = name + "[";
  for (size_t i = 0; i < members.size(); ++i) {
    key += (i == 0 ? "" : ",") + std::to_string(members[i]);
  }
  return key + "]";
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
    : options_(std::move(options)),
      key_(group_key(options_.name, options_.members)),
      watchdog_(std::move(watchdog)),
      line_(std::make_shared<Line>()) {
  const auto place = std::find(options_.members.begin(), options_.members.end(), options_.rank);
  LONGSHORE_CHECK(place != options_.members.end())
      << "rank " << options_.rank << " is not in " << key_;
  index_ = static_cast<int32_t>(place - options_.members.begin());
  watchdog_->join_group(key_, options_.members);
  Operation operation{CommKind::kBarrier, {"connecting", {}}, options_.name, ++sequence_};
  watchdog_->issued(key_, operation);
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

Completion GroupCommunicator::start(CommKind kind, const OpLabel& label, Bytes bytes,
                                    const std::string& detail, std::function<void(Exchange)> work) {
  counters_.add(kind, label.unit, bytes);
  if (size() == 1) return {};
  Operation operation{kind, label, options_.name, ++sequence_, bytes, detail};
  watchdog_->issued(key_, operation);
  Exchange exchange{nullptr, index_, size(), operation.tag()};
  auto task = queue_.push([line = line_, watchdog = watchdog_, key = key_, operation, exchange,
                           work = std::move(work)]() mutable {
    watchdog->begun(key, operation);
    exchange.transport = line->get();
    work(exchange);
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
  counters_.add_wait(operation.kind, operation.label.unit, seconds_since(begin));
  if (!task.error()) return;
  try {
    std::rethrow_exception(task.error());
  } catch (const TransportError& error) {
    const int32_t peer = options_.members[static_cast<size_t>(error.peer())];
    watchdog_->blame_break(peer, operation, error.what());
  } catch (const StoreError& error) {
    // While connecting, a StoreError means that the store or a member is gone.
    const int32_t peer = options_.members[index_ == 0 ? 1 : 0];
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

Completion GroupCommunicator::all_gather(Segments segments, const OpLabel& label) {
  check_parts(segments, size());
  const Bytes bytes = total_bytes(segments);
  return start(CommKind::kAllGather, label, bytes, "",
               [segments = std::move(segments)](Exchange exchange) {
                 all_gather_bytes(exchange, segments);
               });
}

Completion GroupCommunicator::reduce_scatter(FloatSegments segments, DType wire,
                                             std::span<std::byte> scratch, const OpLabel& label) {
  check_parts(segments, size());
  const int64_t elements = total_elements(segments);
  check_reduction(elements, wire, scratch, size());
  return start(CommKind::kReduceScatter, label, elements * width_of(wire),
               std::string(longshore::name_of(wire)),
               [segments = std::move(segments), wire, scratch](Exchange exchange) {
                 reduce_scatter_sums(exchange, segments, wire, scratch);
               });
}

Completion GroupCommunicator::all_reduce(FloatSegments segments, DType wire,
                                         std::span<std::byte> scratch, const OpLabel& label) {
  const int64_t elements = total_elements(segments);
  check_reduction(elements, wire, scratch, size());
  return start(CommKind::kAllReduce, label, elements * width_of(wire),
               std::string(longshore::name_of(wire)),
               [segments = std::move(segments), wire, scratch](Exchange exchange) {
                 all_reduce_sums(exchange, segments, wire, scratch);
               });
}

Completion GroupCommunicator::all_reduce(std::span<double> values, const OpLabel& label) {
  return start(CommKind::kScalars, label, static_cast<Bytes>(values.size_bytes()), "",
               [values](Exchange exchange) { all_reduce_scalars(exchange, values); });
}

Completion GroupCommunicator::broadcast(std::span<std::byte> bytes, int32_t root,
                                        const OpLabel& label) {
  LONGSHORE_CHECK(root >= 0 && root < size()) << root;
  return start(CommKind::kBroadcast, label, static_cast<Bytes>(bytes.size()),
               "from " + std::to_string(root),
               [bytes, root](Exchange exchange) { broadcast_bytes(exchange, bytes, root); });
}

Completion GroupCommunicator::barrier(const OpLabel& label) {
  return start(CommKind::kBarrier, label, 0, "", [](Exchange exchange) { meet(exchange); });
}

}  // namespace longshore
