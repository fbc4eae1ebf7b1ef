// GradientReducer: sums a unit's gradients over ranks, once per unit and step: reduce-scatter in
// the shard group, then all-reduce of the rank's part over its replicas. Owned by the engine; the
// reduce lane calls it.
#pragma once

#include <span>
#include <vector>

#include "offload/staging/rank_groups.h"
#include "shard/flat_layout.h"

namespace longshore {

class GradientReducer {
 public:
  // `layouts` must outlive the reducer; `wire` is the dtype of the payload; `scratch` has
  // planned_scratch_bytes() of device memory.
  GradientReducer(const RankGroups& groups, const std::vector<FlatLayout>* layouts, DType wire,
                  std::span<std::byte> scratch);

  // Returns the device bytes that the largest unit's reduction needs beside its gradients.
  static Bytes planned_scratch_bytes(const std::vector<FlatLayout>& layouts,
                                     const ShardTopology& topology, DType wire);

  // Sums `sums`, the trainable front of the unit's flat parameter. Afterwards the rank's parts are
  // sums over all ranks and the other parts are unspecified. Blocks the reduce lane until then.
  void reduce(UnitId unit, std::span<float> sums);

 private:
  RankGroups groups_;
  const std::vector<FlatLayout>* layouts_;
  DType wire_;
  std::span<std::byte> scratch_;
};

}  // namespace longshore
