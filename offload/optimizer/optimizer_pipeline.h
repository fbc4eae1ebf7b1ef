// OptimizerPipeline: applies an element-wise optimizer to the store's shards, one unit at a time in
// schedule order. Owned by the engine; the update lane calls update(), the engine's thread the rest
// while no pass runs; the pool does the work. A step is staged once its clip factor is known; then
// each unit is updated once, in any order.
//
// Parameters are cut into tiles and tiles into tasks of fixed sizes, so results do not depend on
// the number of threads. Each byte of state is read and written once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "offload/optimizer/update_rule.h"
#include "offload/staging/gradient_drain.h"
#include "pinned/worker_pool.h"
#include "shard/shard_store.h"
#include "shard/state_format.h"

namespace longshore {

// update_traffic: host memory bytes that an update reads and writes. Pure function.

struct UpdateTraffic {
  Bytes read = 0;
  Bytes written = 0;
  Bytes total() const { return read + written; }
};

// Returns the bytes for `elements` elements of a trainable segment. The separate bf16 parameter of
// format fp32 is only written, because its stores bypass the caches.
UpdateTraffic update_traffic(const StateOptions& options, Segment segment, int64_t elements);

class OptimizerPipeline {
 public:
  // All pointers must outlive the pipeline. `gradients` have the store's drain dtype, and the store
  // has the regions of the rule.
  OptimizerPipeline(ShardStore* store, HostGradients* gradients,
                    const std::vector<FlatLayout>& layouts, const ModelSpec& model, Rank rank,
                    std::unique_ptr<UpdateRule> rule, WorkerPool* pool);

  // Gives every unit with trainable parameters a pending update. Earlier ones must be applied.
  void stage(const StepUpdate& update);
  // Applies the unit's pending update, if any, to the store; returns whether it changed the unit.
  // No lease of the unit may exist.
  bool update(UnitId unit);
  // Applies the unit's pending update to its leased state.
  void update(UnitId unit, ShardStore::StateLease& state);
  // Applies all pending updates, in unit order.
  void flush();
  // Any thread may call these.
  bool pending(UnitId unit) const;
  bool pending() const;
  // Returns bytes that updates read and wrote since the last call.
  Bytes take_bytes() { return std::exchange(bytes_, 0); }

 private:
  // Part of one parameter, inside one segment of the shard.
  struct Tile {
    Segment segment;
    int64_t begin = 0;
    int64_t elements = 0;
    int32_t group = 0;  // of the rule
    RoundingStream rounding;
  };
  // The tiles [begin, end) of a unit, which one task updates.
  struct Task {
    size_t begin = 0;
    size_t end = 0;
  };
  struct Unit {
    std::vector<Tile> tiles;
    std::vector<Task> tasks;
    Bytes traffic_bytes = 0;  // of one update
  };

  Unit make_unit(const FlatLayout& layout, const UnitSpec& spec, Rank rank) const;
  static void add_tasks(Unit& unit);
  UpdateSlice slice_of(const Tile& tile, const StateSpans& state,
                       std::span<const std::byte> gradient) const;

  ShardStore* store_;
  HostGradients* gradients_;
  WorkerPool* pool_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<Unit> units_;
  std::deque<std::atomic<bool>> pending_;  // by unit
  uint64_t staged_update_ = 0;
  Bytes bytes_ = 0;
};

}  // namespace longshore
