// ShardedModel: whose state is meant: one rank's shards of a model. A plain value that borrows.
#pragma once

#include <vector>

#include "base/ids.h"
#include "shard/flat_layout.h"
#include "shard/unit_spec.h"

namespace longshore {

struct ShardedModel {
  const ModelSpec& spec;
  const std::vector<FlatLayout>& layouts;  // by unit id
  Rank rank;                               // in the shard group

  const FlatLayout& layout(UnitId unit) const {
    return layouts.at(static_cast<size_t>(unit.value));
  }
};

}  // namespace longshore
