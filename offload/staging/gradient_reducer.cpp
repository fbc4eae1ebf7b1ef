#include "offload/staging/gradient_reducer.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr std::array<Segment, 2> kTrainable = {Segment::kQuantisedMoments, Segment::kFullMoments};

}  // namespace

GradientReducer::GradientReducer(const RankGroups& groups, const std::vector<FlatLayout>* layouts,
                                 DType wire, std::span<std::byte> scratch)
    : groups_(groups), layouts_(layouts), wire_(wire), scratch_(scratch) {
  LONGSHORE_CHECK(static_cast<Bytes>(scratch.size()) >=
                  planned_scratch_bytes(*layouts, groups.topology, wire));
}

Bytes GradientReducer::planned_scratch_bytes(const std::vector<FlatLayout>& layouts,
                                             const ShardTopology& topology, DType wire) {
  Bytes most = 0;
  for (const FlatLayout& layout : layouts) {
    const int64_t whole = layout.trainable_elements();
    most =
        std::max({most, reduce_scratch_bytes(whole, wire, topology.shard_ranks),
                  reduce_scratch_bytes(whole / topology.shard_ranks, wire, topology.replicas())});
  }
  return most;
}

void GradientReducer::reduce(UnitId unit, std::span<float> sums) {
  if (sums.empty()) return;
  const FlatLayout& layout = layouts_->at(static_cast<size_t>(unit.value));
  Communicator::FloatSegments whole, own;
  for (Segment segment : kTrainable) {
    const ElementRange range = layout.segment(segment);
    const ElementRange part = layout.shard(segment, groups_.shard());
    if (range.elements == 0) continue;
    whole.push_back(
        sums.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.elements)));
    own.push_back(
        sums.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.elements)));
  }
  const OpLabel label{"gradients", unit};
  if (groups_.shards != nullptr) {
    groups_.shards->reduce_scatter(std::move(whole), wire_, scratch_, label).wait();
  }
  if (groups_.replicas != nullptr) {
    groups_.replicas->all_reduce(std::move(own), wire_, scratch_, label).wait();
  }
}

}  // namespace longshore
