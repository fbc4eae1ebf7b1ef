#include "offload/optimizer/optimizer_pipeline.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {

UpdateTraffic update_traffic(const StateOptions& options, Segment segment, int64_t elements) {
  UpdateTraffic traffic;
  for (const Region region : regions_of(options)) {
    const Bytes bytes = region_bytes(options, segment, region, elements);
    const bool write_only = region == Region::kHigh && !splits_master(options.format);
    if (!write_only) traffic.read += bytes;
    traffic.written += bytes;
  }
  traffic.read += width_of(options.drain) * elements;  // the gradient
  return traffic;
}

namespace {

// The state of a tile, at most 18 bytes per element, fits a core's L2 cache; a multiple of
// kBlockElements.
constexpr int64_t kTileElements = int64_t{1} << 15;

template <typename T>
std::span<T> part(std::span<T> whole, int64_t begin, int64_t elements) {
  return whole.empty() ? whole
                       : whole.subspan(static_cast<size_t>(begin), static_cast<size_t>(elements));
}

// The random bits depend on the parameter's name, not on its offset.
ArsKey rounding_key(uint64_t seed, const std::string& parameter) {
  return {hash64(parameter), seed};
}

}  // namespace

OptimizerPipeline::OptimizerPipeline(ShardStore* store, HostGradients* gradients,
                                     const std::vector<FlatLayout>& layouts, const ModelSpec& model,
                                     Rank rank, std::unique_ptr<UpdateRule> rule, WorkerPool* pool)
    : store_(store), gradients_(gradients), pool_(pool), rule_(std::move(rule)) {
  LONGSHORE_CHECK(layouts.size() == model.units.size());
  LONGSHORE_CHECK(gradients->dtype() == store->options().drain);
  LONGSHORE_CHECK(std::ranges::equal(rule_->regions(), store->options().regions))
      << "the store has the regions of another update rule";
  for (size_t i = 0; i < layouts.size(); ++i) {
    units_.push_back(make_unit(layouts[i], model.units[i], rank));
    pending_.emplace_back(false);
  }
}

OptimizerPipeline::Unit OptimizerPipeline::make_unit(const FlatLayout& layout, const UnitSpec& spec,
                                                     Rank rank) const {
  Unit unit;
  for (const ShardPiece& piece : layout.trained_pieces(rank)) {
    const auto& parameter = spec.parameters.at(static_cast<size_t>(piece.parameter));
    const int32_t group = rule_->group_of(parameter);
    const ArsKey key = rounding_key(rule_->seed(), parameter.name);
    for (int64_t done = 0; done < piece.elements; done += kTileElements) {
      unit.tiles.push_back({piece.segment,
                            piece.shard_begin + done,
                            std::min(kTileElements, piece.elements - done),
                            group,
                            {key, static_cast<uint64_t>(piece.parameter_begin + done), 0}});
    }
    unit.traffic_bytes += update_traffic(store_->options(), piece.segment, piece.elements).total();
  }
  add_tasks(unit);
  return unit;
}

// Makes tasks; small parameters share one, because a task per norm of a thousand elements would
// cost more than its work.
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
  rule_->stage(update);
  staged_update_ = static_cast<uint64_t>(update.update);
  for (size_t i = 0; i < units_.size(); ++i) pending_[i] = !units_[i].tiles.empty();
}

bool OptimizerPipeline::update(UnitId unit) {
  if (!pending(unit)) return false;
  update(unit, *store_->state(unit));
  return true;
}

void OptimizerPipeline::update(UnitId id, ShardStore::StateLease& state) {
  LONGSHORE_CHECK(pending(id)) << "unit " << id << " has no pending update";
  Unit& unit = units_.at(static_cast<size_t>(id.value));
  constexpr std::array<Segment, 2> kTrained = {Segment::kQuantisedMoments, Segment::kFullMoments};
  std::array<StateSpans, kTrained.size()> states;
  std::array<std::span<const std::byte>, kTrained.size()> gradients;
  for (const Segment segment : kTrained) {
    states[static_cast<size_t>(segment)] = state.segment(segment);
    gradients[static_cast<size_t>(segment)] = gradients_->segment(id, segment);
  }
  pool_->for_each_block(static_cast<int64_t>(unit.tasks.size()), [&](int64_t index) {
    const Task& task = unit.tasks[static_cast<size_t>(index)];
    for (size_t i = task.begin; i < task.end; ++i) {
      const Tile& tile = unit.tiles[i];
      const auto segment = static_cast<size_t>(tile.segment);
      rule_->apply(tile.group, slice_of(tile, states[segment], gradients[segment]));
    }
  });
  pending_[static_cast<size_t>(id.value)] = false;
  bytes_ += unit.traffic_bytes;
}

UpdateSlice OptimizerPipeline::slice_of(const Tile& tile, const StateSpans& state,
                                        std::span<const std::byte> gradient) const {
  const DType drain = gradients_->dtype();
  const Bytes width = width_of(drain);
  UpdateSlice slice = {
      .master = part(state.master, tile.begin, tile.elements),
      .high = part(state.high, tile.begin, tile.elements),
      .low = part(state.low, tile.begin, tile.elements),
      .gradient = part(gradient, tile.begin * width, tile.elements * width),
      .gradient_dtype = drain,
      .rounding = tile.rounding,
  };
  slice.regions.reserve(state.regions.size());
  for (const MomentSpan& region : state.regions) {
    slice.regions.push_back(region.part(tile.begin, tile.elements));
  }
  slice.rounding.update = staged_update_;
  return slice;
}

void OptimizerPipeline::flush() {
  for (size_t i = 0; i < units_.size(); ++i) update(UnitId(static_cast<int32_t>(i)));
}

bool OptimizerPipeline::pending(UnitId unit) const {
  return pending_.at(static_cast<size_t>(unit.value));
}

bool OptimizerPipeline::pending() const {
  return std::ranges::any_of(pending_, [](const std::atomic<bool>& unit) { return unit.load(); });
}

}  // namespace longshore
