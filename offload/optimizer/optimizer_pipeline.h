// OptimizerPipeline: applies an update rule to the store's shards, one unit at a time in
// schedule order. Owned by the engine; the update lane calls update(), the engine's thread the rest
// while no pass runs; the pool does the work. A step is staged once its clip factor is known; then
// each unit is updated once, in any order.
//
// Parameters are cut into tiles and tiles into tasks of fixed sizes, so results do not depend on
// the number of threads. Each byte of state is read and written once. A matrix that the rule needs
// whole is a task of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
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
  // Returns the host memory of whole matrices' scratch; equal to the plan.
  Bytes scratch_bytes() const { return size_of_scratch_.bytes(); }

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
  // A matrix that one task updates; `place` counts from the tile's first element.
  struct WholeMatrix {
    Tile tile;
    MatrixPlace place;
  };
  struct Unit {
    std::vector<WholeMatrix> matrices;  // they come first
    std::vector<Tile> tiles;
    std::vector<Task> tasks;
    Bytes traffic_bytes = 0;  // of one update
  };

  Unit make_unit(const FlatLayout& layout, const UnitSpec& spec, Rank rank) const;
  static void add_matrices(Unit& unit, const ParamSpec& parameter, const ShardPiece& piece,
                           const Tile& like);
  static void add_tasks(Unit& unit);
  void update_matrix(const WholeMatrix& matrix, const StateSpans& state,
                     std::span<const std::byte> gradient);
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
  MatrixScratch size_of_scratch_;
  std::vector<float> scratch_;
  Mutex free_mutex_;
  std::vector<size_t> free_ LONGSHORE_GUARDED_BY(free_mutex_);  // places in the scratch
};

}  // namespace longshore
