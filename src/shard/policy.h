// What a run may choose: one enum for each choice, which the run file, the plan and the engine
// share. The run file's words for them stand in config/field_table.cpp, or in the table of the
// type. Plain values.
#pragma once

#include <cstdint>

namespace longshore {

// What every rank keeps of the model, and for how long units stay gathered; shard_topology.h.
enum class ShardStrategy : uint8_t { kFullShard, kShardGradOp, kHybridShard, kNoShard };

// How a unit's shards come together on the device.
enum class GatherMode : uint8_t {
  kCollective,  // each rank copies its own, a collective does the rest
  kHost,        // each rank copies all of them, from the memory of the machine's ranks
};

// When updates are applied.
enum class UpdateOverlap : uint8_t {
  kNone,      // after the step: not in this schedule
  kForward,   // the last step's update of a unit, just before the unit is fetched
  kBackward,  // this step's update of a unit, once its gradient is in host memory; no clipping
};

// How the state is stored; state_format.h has a row for each.
enum class StateFormat : uint8_t { kFp32, kSplit, kSplitBf16, kSplitInt8 };

// Which parameters the weight decay takes from.
enum class DecayRule : uint8_t {
  kMatrices,  // those with two or more dimensions
  kAll,
};

}  // namespace longshore
