// The choices of a run, one enum each, shared by run file, plan and engine. Their names in
// the run file are in config/field_table.cpp or in the type's own table. Plain values.
#pragma once

#include <cstdint>

namespace longshore {

// The part of the model that every rank keeps, and how long units stay gathered (shard_topology.h).
enum class ShardStrategy : uint8_t { kFullShard, kShardGradOp, kHybridShard, kNoShard };

// How a unit's shards are gathered on the device.
enum class GatherMode : uint8_t {
  kCollective,  // each rank copies its own shard, a collective gathers the rest
  kHost,        // each rank copies all shards from the host memory of the machine's ranks
};

// The time at which updates are applied.
enum class UpdateOverlap : uint8_t {
  kNone,      // after the step, by its own schedule
  kForward,   // the last step's update of a unit, just before its fetch
  kBackward,  // this step's update of a unit, once its gradient is in host memory; no clipping
};

// The storage format of the state; state_format.h has a row for each.
enum class StateFormat : uint8_t { kFp32, kSplit, kSplitBf16, kSplitInt8 };

// The parameters that weight decay applies to.
enum class DecayRule : uint8_t {
  kMatrices,  // parameters with two or more dimensions
  kAll,
};

}  // namespace longshore
