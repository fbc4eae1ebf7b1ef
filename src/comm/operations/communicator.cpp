#include "comm/operations/communicator.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/log.h"
#include "comm/operations/operation.h"

namespace longshore {

std::string_view name_of(CommKind kind) {
  switch (kind) {
    case CommKind::kAllGather:
      return "all_gather";
    case CommKind::kReduceScatter:
      return "reduce_scatter";
    case CommKind::kAllReduce:
      return "all_reduce";
    case CommKind::kScalars:
      return "scalars";
    case CommKind::kBroadcast:
      return "broadcast";
    case CommKind::kBarrier:
      return "barrier";
  }
  return "?";
}

PayloadCounters::Count& PayloadCounters::Count::operator+=(const Count& other) {
  operations += other.operations;
  payload += other.payload;
  waited_seconds += other.waited_seconds;
  return *this;
}

PayloadCounters::Count& PayloadCounters::Count::operator-=(const Count& other) {
  operations -= other.operations;
  payload -= other.payload;
  waited_seconds -= other.waited_seconds;
  return *this;
}

PayloadCounters::Count PayloadCounters::Totals::all() const {
  Count sum;
  for (const auto& [key, count] : counts) sum += count;
  return sum;
}

PayloadCounters::Count PayloadCounters::Totals::of(CommKind kind) const {
  Count sum;
  for (const auto& [key, count] : counts) {
    if (key.first == kind) sum += count;
  }
  return sum;
}

PayloadCounters::Count PayloadCounters::Totals::of(CommKind kind,
                                                   std::optional<UnitId> unit) const {
  const auto found = counts.find({kind, unit});
  return found == counts.end() ? Count{} : found->second;
}

void PayloadCounters::add(CommKind kind, std::optional<UnitId> unit, Bytes payload) {
  Count& count = total_.counts[{kind, unit}];
  ++count.operations;
  count.payload += payload;
}

void PayloadCounters::add_wait(CommKind kind, std::optional<UnitId> unit, double seconds) {
  total_.counts[{kind, unit}].waited_seconds += seconds;
}

PayloadCounters::Totals PayloadCounters::take() {
  Totals since = total_;
  for (auto& [key, count] : since.counts) count -= taken_.counts[key];
  taken_ = total_;
  return since;
}

Completion::Completion(std::unique_ptr<State> state) : state_(std::move(state)) {}

Completion& Completion::operator=(Completion&& other) noexcept {
  if (this != &other) {
    Completion dropped = std::move(*this);
    state_ = std::move(other.state_);
  }
  return *this;
}

Completion::~Completion() {
  if (!state_) return;
  try {
    wait();
  } catch (const std::exception& error) {
    // Another error matters: the one that unwinds the owner, or the next operation's.
    log_debug(std::string("an operation that no thread waited for failed: ") + error.what());
  }
}

void Completion::wait() {
  if (!state_) return;
  const std::unique_ptr<State> state = std::move(state_);
  state->wait();
}

Bytes reduce_scratch_bytes(int64_t elements, DType /*wire*/, int32_t size) {
  if (size <= 1) return 0;
  // fp32 needs the received values; bf16 needs sent and received values, each half as wide.
  const int64_t part = (elements + size - 1) / size;
  const int64_t window = std::min(part, 2 * kRoundElements);
  return window * (size - 1) * static_cast<Bytes>(sizeof(float));
}

Completion SoloCommunicator::all_gather(Segments segments, const OpLabel& label) {
  counters_.add(CommKind::kAllGather, label.unit, total_bytes(segments));
  return {};
}

Completion SoloCommunicator::reduce_scatter(FloatSegments segments, DType wire,
                                            std::span<std::byte> scratch, const OpLabel& label) {
  const int64_t elements = total_elements(segments);
  check_reduction(elements, wire, scratch, 1);
  counters_.add(CommKind::kReduceScatter, label.unit, elements * width_of(wire));
  return {};
}

Completion SoloCommunicator::all_reduce(FloatSegments segments, DType wire,
                                        std::span<std::byte> scratch, const OpLabel& label) {
  const int64_t elements = total_elements(segments);
  check_reduction(elements, wire, scratch, 1);
  counters_.add(CommKind::kAllReduce, label.unit, elements * width_of(wire));
  return {};
}

Completion SoloCommunicator::all_reduce(std::span<double> values, const OpLabel& label) {
  counters_.add(CommKind::kScalars, label.unit, static_cast<Bytes>(values.size_bytes()));
  return {};
}

Completion SoloCommunicator::broadcast(std::span<std::byte> bytes, int32_t root,
                                       const OpLabel& label) {
  LONGSHORE_CHECK(root == 0) << root;
  counters_.add(CommKind::kBroadcast, label.unit, static_cast<Bytes>(bytes.size()));
  return {};
}

Completion SoloCommunicator::barrier(const OpLabel& label) {
  counters_.add(CommKind::kBarrier, label.unit, 0);
  return {};
}

}  // namespace longshore
