// RankShare: assigns micro-batches of a step or an evaluation to ranks: micro-batch k belongs to
// rank k mod ranks. Pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "offload/engine/batch_stage.h"

namespace longshore {

// Some ranks may get one more micro-batch than others, or none.
inline std::vector<HostBatch> share_of(std::span<const HostBatch> batches, Rank rank,
                                       int32_t ranks) {
  std::vector<HostBatch> own;
  for (size_t i = static_cast<size_t>(rank.value); i < batches.size();
       i += static_cast<size_t>(ranks)) {
    own.push_back(batches[i]);
  }
  return own;
}

}  // namespace longshore
