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
  // Returns the bytes of the rank's part of a unit: 4 for each value, but for packed parameters
  // their packed bytes.
  Bytes fp32_bytes(UnitId unit, bool frozen_too) const {
    Bytes bytes = 0;
    for (const ShardPiece& piece : layout(unit).trained_pieces(rank)) {
      bytes += piece.elements * width_of(DType::kF32);
    }
    if (!frozen_too) return bytes;
    for (const FrozenPiece& piece : layout(unit).frozen_pieces(rank)) {
      bytes += is_packed(piece.type)
                   ? piece.bytes
                   : piece.bytes / width_of(number_of(piece.type)) * width_of(DType::kF32);
    }
    return bytes;
  }
  Bytes fp32_bytes(bool frozen_too) const {
    Bytes bytes = 0;
    for (const UnitSpec& unit : spec.units) bytes += fp32_bytes(unit.id, frozen_too);
    return bytes;
  }
};

}  // namespace longshore
