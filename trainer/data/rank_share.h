// RankShare: which micro-batches of a step, or of an evaluation, are a rank's: every ranks-th one.
// Pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "offload/engine/batch_stage.h"

namespace longshore {

// Some ranks may have one more than others, or none.
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
