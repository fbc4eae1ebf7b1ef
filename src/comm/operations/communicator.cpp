#include "comm/operations/communicator.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/log.h"
#include "comm/operations/operation.h"

namespace longshore {
namespace {

// Throws CheckFailure if a segment does not divide into `size` equal parts.
template <typename Element>
void check_parts(const std::vector<std::span<Element>>& segments, int32_t size) {
  for (const auto& segment : segments) {
    LONGSHORE_CHECK(segment.size() % static_cast<size_t>(size) == 0)
        << segment.size() << (sizeof(Element) == 1 ? " bytes" : " elements") << " for " << size
        << " ranks";
  }
}

Communicator::Segments bytes_of(const Communicator::FloatSegments& segments) {
  Communicator::Segments bytes;
  for (const auto& segment : segments) bytes.push_back(std::as_writable_bytes(segment));
  return bytes;
}

}  // namespace

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

Bytes Collective::payload() const {
  Bytes bytes = 0;
  for (const auto& segment : segments) bytes += std::ssize(segment);
  return reduces() ? bytes / width_of(DType::kF32) * width_of(wire) : bytes;
}

Completion Communicator::all_gather(Segments segments, const OpLabel& label) {
  check_parts(segments, size_);
  return count({CommKind::kAllGather, label, std::move(segments)});
}

Completion Communicator::reduce_scatter(const FloatSegments& segments, DType wire,
                                        std::span<std::byte> scratch, const OpLabel& label) {
  check_parts(segments, size_);
  return count({CommKind::kReduceScatter, label, bytes_of(segments), wire, scratch});
}

Completion Communicator::all_reduce(const FloatSegments& segments, DType wire,
                                    std::span<std::byte> scratch, const OpLabel& label) {
  return count({CommKind::kAllReduce, label, bytes_of(segments), wire, scratch});
}

Completion Communicator::all_reduce(std::span<double> values, const OpLabel& label) {
  return count({CommKind::kScalars, label, {std::as_writable_bytes(values)}});
}

Completion Communicator::broadcast(std::span<std::byte> bytes, int32_t root, const OpLabel& label) {
  LONGSHORE_CHECK(root >= 0 && root < size_) << root;
  return count({.kind = CommKind::kBroadcast, .label = label, .segments = {bytes}, .root = root});
}

Completion Communicator::barrier(const OpLabel& label) {
  return count({CommKind::kBarrier, label});
}

Completion Communicator::count(const Collective& collective) {
  Completion completion = start(collective);
  counters_.add(collective.kind, collective.label.unit, collective.payload());
  return completion;
}

Completion SoloCommunicator::start(const Collective& collective) {
  check_reduction(collective, 1);
  return {};
}

}  // namespace longshore
