#include "offload/optimizer_pipeline.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/errors.h"
#include "offload/update_traffic.h"

namespace longshore {
namespace {

// A tile's state, 18 bytes an element at most, stays in a core's L2 cache; a multiple of
// kBlockElements.
constexpr int64_t kTileElements = int64_t{1} << 15;

template <typename T>
std::span<T> part(std::span<T> whole, int64_t begin, int64_t elements) {
  return whole.empty() ? whole
                       : whole.subspan(static_cast<size_t>(begin), static_cast<size_t>(elements));
}

}  // namespace

OptimizerPipeline::OptimizerPipeline(ShardStore* store, const std::vector<FlatLayout>& layouts,
                                     const ModelSpec& model, Rank rank, const AdamWOptions& options,
                                     WorkerPool* pool, Ledger* ledger)
    : store_(store), pool_(pool), ledger_(ledger), options_(options) {
  LONGSHORE_CHECK(layouts.size() == model.units.size());
  const Bytes element_traffic = update_traffic(store->options()).total();
  for (size_t i = 0; i < layouts.size(); ++i) {
    units_.push_back(make_unit(layouts[i], model.units[i], rank, options, element_traffic));
  }
}

OptimizerPipeline::Unit OptimizerPipeline::make_unit(const FlatLayout& layout, const UnitSpec& spec,
                                                     Rank rank, const AdamWOptions& options,
                                                     Bytes element_traffic) {
  Unit unit;
  for (const ShardPiece& piece : layout.pieces(rank)) {
    if (piece.segment == Segment::kFrozen) continue;
    const auto& parameter = spec.parameters.at(static_cast<size_t>(piece.parameter));
    const bool decays = options.decay == AdamWOptions::Decay::kAll || parameter.shape.size() >= 2;
    for (int64_t done = 0; done < piece.elements; done += kTileElements) {
      unit.tiles.push_back({piece.segment, piece.shard_begin + done,
                            std::min(kTileElements, piece.elements - done), decays});
    }
    unit.traffic_bytes += piece.elements * element_traffic;
  }
  add_tasks(unit);
  return unit;
}

// Small parameters share a task: a task for a norm of a thousand elements would cost more than it
// does.
void OptimizerPipeline::add_tasks(Unit& unit) {
  int64_t elements = 0;
  size_t begin = 0;
  for (size_t i = 0; i < unit.tiles.size(); ++i) {
    elements += unit.tiles[i].elements;
    if (elements < kTileElements && i + 1 < unit.tiles.size()) continue;
    unit.tasks.push_back({begin, i + 1});
    begin = i + 1;
    elements = 0;
  }
}

void OptimizerPipeline::stage(const StepUpdate& update) {
  LONGSHORE_CHECK(!pending()) << "update " << update.update << " staged before the last is applied";
  decaying_ = make_adamw_scalars(options_, update.update, update.lr, update.clip_scale, true);
  keeping_ = make_adamw_scalars(options_, update.update, update.lr, update.clip_scale, false);
  for (Unit& unit : units_) unit.pending = !unit.tiles.empty();
}

bool OptimizerPipeline::update(UnitId id) {
  Unit& unit = units_.at(static_cast<size_t>(id.value));
  if (!unit.pending) return false;
  const LedgerEntry entry(ledger_, Edge::kUpdate, unit.traffic_bytes);
  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<ShardStore::StateLease> lease = store_->state(id);
  const std::array<StateSpans, 2> segments = {lease->segment(Segment::kQuantisedMoments),
                                              lease->segment(Segment::kFullMoments)};
  pool_->for_each_block(static_cast<int64_t>(unit.tasks.size()), [&](int64_t index) {
    const Task& task = unit.tasks[static_cast<size_t>(index)];
    for (size_t i = task.begin; i < task.end; ++i) {
      run_tile(unit.tiles[i], segments[static_cast<size_t>(unit.tiles[i].segment)]);
    }
  });
  unit.pending = false;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return true;
}

void OptimizerPipeline::run_tile(const Tile& tile, const StateSpans& state) const {
  const DType drain = store_->options().drain;
  const Bytes width = width_of(drain);
  const AdamWSlice slice = {
      .master = part(state.master, tile.begin, tile.elements),
      .high = part(state.high, tile.begin, tile.elements),
      .low = part(state.low, tile.begin, tile.elements),
      .exp_avg = part(state.exp_avg, tile.begin, tile.elements),
      .exp_avg_sq = part(state.exp_avg_sq, tile.begin, tile.elements),
      .gradient = part(std::span<const std::byte>(state.gradient), tile.begin * width,
                       tile.elements * width),
      .gradient_dtype = drain,
  };
  adamw_step(slice, tile.decays ? decaying_ : keeping_);
}

void OptimizerPipeline::flush() {
  for (size_t i = 0; i < units_.size(); ++i) update(UnitId(static_cast<int32_t>(i)));
}

bool OptimizerPipeline::pending(UnitId unit) const {
  return units_.at(static_cast<size_t>(unit.value)).pending;
}

bool OptimizerPipeline::pending() const {
  return std::ranges::any_of(units_, [](const Unit& unit) { return unit.pending; });
}

}  // namespace longshore
