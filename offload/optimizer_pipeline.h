// OptimizerPipeline: applies AdamW to the shards at home, one unit at a time, when the schedule
// asks. Owned by the run; one owner thread calls it, the work runs on the pool. A step is staged
// once its clip factor is known; its units are then updated in any order, each once.
//
// Each parameter's piece is cut into tiles of fixed size and tiles into tasks of fixed size, so
// that results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "offload/adamw.h"
#include "offload/ledger.h"
#include "pinned/worker_pool.h"
#include "shard/shard_store.h"

namespace longshore {

// An optimizer step whose gradients wait in the store.
struct StepUpdate {
  int64_t update = 1;  // counts applied updates from 1; a skipped step has none
  double lr = 0.0;
  double clip_scale = 1.0;
};

class OptimizerPipeline {
 public:
  // The store, the pool and the ledger (may be null) must outlive the pipeline.
  OptimizerPipeline(ShardStore* store, const std::vector<FlatLayout>& layouts,
                    const ModelSpec& model, Rank rank, const AdamWOptions& options,
                    WorkerPool* pool, Ledger* ledger);

  // Every unit with trainable parameters now has a pending update. Earlier ones must be applied.
  void stage(const StepUpdate& update);
  // Applies the unit's pending update; does nothing where there is none. Nobody may hold a lease of
  // the unit. Returns true when it changed the unit.
  bool update(UnitId unit);
  // Applies all pending updates, in unit order.
  void flush();
  bool pending(UnitId unit) const;
  bool pending() const;
  // Seconds spent in updates since the last call.
  double take_seconds() { return std::exchange(seconds_, 0.0); }

 private:
  // Part of one parameter, inside one segment of the shard.
  struct Tile {
    Segment segment;
    int64_t begin = 0;
    int64_t elements = 0;
    bool decays = false;
  };
  // Tiles that one task updates: [begin, end) of the unit's tiles.
  struct Task {
    size_t begin = 0;
    size_t end = 0;
  };
  struct Unit {
    std::vector<Tile> tiles;
    std::vector<Task> tasks;
    Bytes traffic_bytes = 0;  // of one update
    bool pending = false;
  };
  static Unit make_unit(const FlatLayout& layout, const UnitSpec& spec, Rank rank,
                        const AdamWOptions& options, Bytes element_traffic);
  static void add_tasks(Unit& unit);
  void run_tile(const Tile& tile, const StateSpans& state) const;

  ShardStore* store_;
  WorkerPool* pool_;
  Ledger* ledger_;
  AdamWOptions options_;
  std::vector<Unit> units_;
  AdamWScalars decaying_;  // of the staged step
  AdamWScalars keeping_;
  double seconds_ = 0.0;
};

}  // namespace longshore
