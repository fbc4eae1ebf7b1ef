// ShardedModel: one rank's shards of a model. A plain value that refers to spec and layouts.
#pragma once

#include <vector>

#include "base/bytes.h"
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
  // Returns the bytes of the rank's part of a unit as fp32 values.
  Bytes fp32_bytes(UnitId unit, bool frozen_too) const {
    int64_t elements = 0;
    for (const ShardPiece& piece : layout(unit).pieces(rank)) {
      if (frozen_too || piece.segment != Segment::kFrozen) elements += piece.elements;
    }
    return elements * static_cast<Bytes>(sizeof(float));
  }
  Bytes fp32_bytes(bool frozen_too) const {
    Bytes bytes = 0;
    for (const UnitSpec& unit : spec.units) bytes += fp32_bytes(unit.id, frozen_too);
    return bytes;
  }
};

}  // namespace longshore
