#include "comm/collectives/solo_communicator.h"

#include "base/errors.h"
#include "comm/operations/operation.h"

namespace longshore {

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
