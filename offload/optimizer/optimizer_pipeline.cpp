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
  size_of_scratch_ = matrix_scratch(
      model,
      [this](int64_t rows, int64_t columns) { return rule_->scratch_elements(rows, columns); },
      pool->threads());
  scratch_.resize(static_cast<size_t>(size_of_scratch_.count * size_of_scratch_.elements));
  const MutexLock lock(free_mutex_);
  for (int64_t i = 0; i < size_of_scratch_.count; ++i) free_.push_back(static_cast<size_t>(i));
}

OptimizerPipeline::Unit OptimizerPipeline::make_unit(const FlatLayout& layout, const UnitSpec& spec,
                                                     Rank rank) const {
  Unit unit;
  for (const ShardPiece& piece : layout.trained_pieces(rank)) {
    const auto& parameter = spec.parameters.at(static_cast<size_t>(piece.parameter));
    const int32_t group = rule_->group_of(parameter);
    const ArsKey key = rounding_key(rule_->seed(), parameter.name);
    const bool whole = rule_->grain_of(parameter) == UpdateGrain::kMatrices;
    LONGSHORE_CHECK(whole == (piece.segment == Segment::kWholeMatrices)) << parameter.name;
    unit.traffic_bytes += update_traffic(store_->options(), piece.segment, piece.elements).total();
    if (whole) {
      add_matrices(unit, parameter, piece,
                   {.segment = piece.segment, .group = group, .rounding = {key, 0, 0}});
      continue;
    }
    for (int64_t done = 0; done < piece.elements; done += kTileElements) {
      unit.tiles.push_back({piece.segment,
                            piece.shard_begin + done,
                            std::min(kTileElements, piece.elements - done),
                            group,
                            {key, static_cast<uint64_t>(piece.parameter_begin + done), 0}});
    }
  }
  add_tasks(unit);
  return unit;
}

// Adds the matrices that lie in the piece. Each is whole; the parameter's others lie in pieces of
// other ranks or units.
void OptimizerPipeline::add_matrices(Unit& unit, const ParamSpec& parameter,
                                     const ShardPiece& piece, const Tile& like) {
  const int64_t begin = piece.parameter_begin - parameter.first_element();
  for (MatrixPlace place : parameter.matrix_places()) {
    if (place.end() <= begin || place.first >= begin + piece.elements) continue;
    LONGSHORE_CHECK(place.first >= begin && place.end() <= begin + piece.elements)
        << parameter.name << " is cut inside of a matrix";
    WholeMatrix matrix{like, place};
    matrix.tile.begin = piece.shard_begin + place.first - begin;
    matrix.tile.elements = place.end() - place.first;
    matrix.tile.rounding.first_element =
        static_cast<uint64_t>(parameter.first_element() + place.first);
    matrix.place.first = 0;
    unit.matrices.push_back(matrix);
  }
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
  for (size_t i = 0; i < units_.size(); ++i) {
    pending_[i] = !units_[i].tiles.empty() || !units_[i].matrices.empty();
  }
}

bool OptimizerPipeline::update(UnitId unit) {
  if (!pending(unit)) return false;
  update(unit, *store_->state(unit));
  return true;
}

void OptimizerPipeline::update(UnitId id, ShardStore::StateLease& state) {
  LONGSHORE_CHECK(pending(id)) << "unit " << id << " has no pending update";
  Unit& unit = units_.at(static_cast<size_t>(id.value));
  std::array<StateSpans, kTrainedSegments.size()> states;
  std::array<std::span<const std::byte>, kTrainedSegments.size()> gradients;
  for (const Segment segment : kTrainedSegments) {
    states[static_cast<size_t>(segment)] = state.segment(segment);
    gradients[static_cast<size_t>(segment)] = gradients_->segment(id, segment);
  }
  const size_t matrices = unit.matrices.size();
  const auto blocks = static_cast<int64_t>(matrices + unit.tasks.size());
  pool_->for_each_block(blocks, [&](int64_t block) {
    const auto index = static_cast<size_t>(block);
    if (index < matrices) {
      constexpr auto kSegment = static_cast<size_t>(Segment::kWholeMatrices);
      update_matrix(unit.matrices[index], states[kSegment], gradients[kSegment]);
      return;
    }
    const Task& task = unit.tasks[index - matrices];
    for (size_t i = task.begin; i < task.end; ++i) {
      const Tile& tile = unit.tiles[i];
      const auto segment = static_cast<size_t>(tile.segment);
      rule_->apply(tile.group, slice_of(tile, states[segment], gradients[segment]));
    }
  });
  pending_[static_cast<size_t>(id.value)] = false;
  bytes_ += unit.traffic_bytes;
}

void OptimizerPipeline::update_matrix(const WholeMatrix& matrix, const StateSpans& state,
                                      std::span<const std::byte> gradient) {
  // Some place is free: there is one for each thread, or for each matrix of the unit.
  struct Lease {
    explicit Lease(OptimizerPipeline& of) : pipeline(of) {
      const MutexLock lock(of.free_mutex_);
      LONGSHORE_CHECK(!of.free_.empty()) << "more whole matrices at a time than planned";
      place = of.free_.back();
      of.free_.pop_back();
    }
    ~Lease() {
      const MutexLock lock(pipeline.free_mutex_);
      pipeline.free_.push_back(place);
    }
    OptimizerPipeline& pipeline;
    size_t place = 0;
  };
  const Lease lease(*this);
  const auto elements = static_cast<size_t>(size_of_scratch_.elements);
  rule_->apply_matrix(matrix.tile.group, matrix.place, slice_of(matrix.tile, state, gradient),
                      std::span(scratch_).subspan(lease.place * elements, elements));
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
  const std::span<const StateRegion> regions = store_->options().regions;
  for (size_t i = 0; i < regions.size(); ++i) {
    if (!is_kept(regions[i], tile.segment)) continue;
    slice.regions.push_back(state.regions[i].part(tile.begin, tile.elements));
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
