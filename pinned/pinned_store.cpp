#include "pinned/pinned_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/mutex.h"
#include "base/number_formats.h"
#include "shard/slots.h"

namespace longshore {
namespace {

constexpr Bytes kJoinAlignment = 4096;
// One task joins this many elements.
constexpr int64_t kJoinBlockElements = int64_t{1} << 18;

Bytes slab_bytes(const FlatLayout& layout, const StateOptions& options) {
  return SlabLayout(layout, options).slab_bytes();
}

}  // namespace

class PinnedStore::Parameters final : public ParameterLease {
 public:
  // The caller has already counted the lease.
  Parameters(PinnedStore* store, Unit* unit, bool joined, std::span<const std::byte> bytes)
      : store_(store), unit_(unit), joined_(joined), bytes_(bytes) {}
  ~Parameters() override { store_->end_parameters(*unit_, joined_); }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  PinnedStore* store_;
  Unit* unit_;
  bool joined_;
  std::span<const std::byte> bytes_;
};

class PinnedStore::State final : public StateLease {
 public:
  // The caller marks the lease under the same lock.
  State(PinnedStore* store, Unit* unit) : store_(store), unit_(unit) {}
  ~State() override { store_->end_state(*unit_); }
  StateSpans segment(Segment segment) override {
    return state_spans(store_->options_, segment, [&](Region region) {
      return unit_->slab.subspan(static_cast<size_t>(unit_->layout.offset(region, segment)),
                                 static_cast<size_t>(unit_->layout.bytes(region, segment)));
    });
  }

 private:
  PinnedStore* store_;
  Unit* unit_;
};

PinnedStore::PinnedStore(const std::vector<FlatLayout>& layouts, const StateOptions& options,
                         bool register_with_gpus, WorkerPool* pool, bool shared)
    : options_(options),
      pool_(pool),
      arena_(planned_bytes(layouts, options), register_with_gpus, *pool, shared) {
  size_t cursor = 0;
  for (const FlatLayout& layout : layouts) {
    const SlabLayout slab(layout, options);
    const auto bytes = static_cast<size_t>(slab.slab_bytes());
    units_.push_back({slab, arena_.bytes().subspan(cursor, bytes)});
    cursor += bytes;
  }
  join_region_ = arena_.bytes().subspan(cursor);
  LONGSHORE_CHECK(static_cast<Bytes>(join_region_.size()) == planned_join_bytes(layouts, options));
}

PinnedStore::~PinnedStore() = default;

Bytes PinnedStore::planned_bytes(const std::vector<FlatLayout>& layouts,
                                 const StateOptions& options) {
  Bytes sum = planned_join_bytes(layouts, options);
  for (const FlatLayout& layout : layouts) sum += slab_bytes(layout, options);
  return sum;
}

Bytes PinnedStore::planned_join_bytes(const std::vector<FlatLayout>& layouts,
                                      const StateOptions& options) {
  if (!needs_join(options)) return 0;
  Bytes largest = 0;
  for (const FlatLayout& layout : layouts) {
    largest = std::max(largest, layout.shard_bytes());
  }
  return align_up(largest, kJoinAlignment);
}

std::span<std::byte> PinnedStore::region(const Unit& unit, Region region) const {
  return unit.slab.subspan(static_cast<size_t>(unit.layout.offset(region, kSegments.front())),
                           static_cast<size_t>(unit.layout.region_bytes(region)));
}

std::span<std::byte> PinnedStore::host_parameters(const Unit& unit) const {
  return region(unit, options_.compute == DType::kF32 ? Region::kMaster : Region::kHigh);
}

std::unique_ptr<ShardStore::ParameterLease> PinnedStore::parameters(UnitId id) {
  Unit& unit = of_unit(units_, id);
  const bool joins = needs_join(options_);
  {
    const MutexLock lock(leases_);
    LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased";
    LONGSHORE_CHECK(!joins || !join_leased_) << "unit " << id << ": the join region is leased";
    ++unit.parameter_leases;
    join_leased_ = join_leased_ || joins;
  }
  return std::make_unique<Parameters>(this, &unit, joins,
                                      joins ? join(unit) : host_parameters(unit));
}

void PinnedStore::end_parameters(Unit& unit, bool joined) {
  const MutexLock lock(leases_);
  --unit.parameter_leases;
  if (joined) join_leased_ = false;
}

// Joins the two halves of the trainable segments, then appends the frozen segment unchanged.
std::span<const std::byte> PinnedStore::join(const Unit& unit) {
  const std::span<const uint16_t> high = as_span<uint16_t>(region(unit, Region::kHigh));
  const std::span<const uint16_t> low = as_span<uint16_t>(region(unit, Region::kLow));
  const std::span<const std::byte> frozen = region(unit, Region::kMaster);
  const std::span<float> joined = as_span<float>(join_region_);
  LONGSHORE_CHECK(high.size() == low.size());
  const auto elements = static_cast<int64_t>(high.size());
  const int64_t blocks = (elements + kJoinBlockElements - 1) / kJoinBlockElements;
  pool_->for_each_block(blocks, [&](int64_t block) {
    const int64_t end = std::min((block + 1) * kJoinBlockElements, elements);
    for (auto i = static_cast<size_t>(block * kJoinBlockElements); i < static_cast<size_t>(end);
         ++i) {
      joined[i] = join_master(high[i], low[i]);
    }
  });
  const size_t trainable_bytes = high.size() * sizeof(float);
  if (!frozen.empty()) {
    std::memcpy(join_region_.data() + trainable_bytes, frozen.data(), frozen.size());
  }
  return join_region_.first(trainable_bytes + frozen.size());
}

std::span<const std::byte> PinnedStore::mapped_parameters(std::span<const std::byte> arena,
                                                          UnitId id) const {
  LONGSHORE_CHECK(!needs_join(options_) && arena.size() == arena_.bytes().size());
  const std::span<const std::byte> own = host_parameters(units_.at(static_cast<size_t>(id.value)));
  return arena.subspan(static_cast<size_t>(own.data() - arena_.bytes().data()), own.size());
}

std::unique_ptr<ShardStore::StateLease> PinnedStore::state(UnitId id) {
  Unit& unit = of_unit(units_, id);
  const MutexLock lock(leases_);
  LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased already";
  LONGSHORE_CHECK(unit.parameter_leases == 0) << "unit " << id << "'s parameters are leased";
  auto lease = std::make_unique<State>(this, &unit);
  unit.state_leased = true;
  return lease;
}

void PinnedStore::end_state(Unit& unit) {
  const MutexLock lock(leases_);
  unit.state_leased = false;
}

HostInputs::HostInputs(const std::vector<Bytes>& unit_bytes, int64_t micro_batches,
                       bool register_with_gpus, WorkerPool& pool)
    : arena_(std::accumulate(unit_bytes.begin(), unit_bytes.end(), Bytes{0}), register_with_gpus,
             pool) {
  std::span<std::byte> rest = arena_.bytes();
  for (Bytes bytes : unit_bytes) {
    LONGSHORE_CHECK(bytes % micro_batches == 0) << bytes << " in " << micro_batches << " parts";
    const auto part = static_cast<size_t>(bytes / micro_batches);
    std::vector<std::span<std::byte>>& places = places_.emplace_back();
    for (int64_t i = 0; i < micro_batches && part > 0; ++i) {
      places.push_back(rest.first(part));
      rest = rest.subspan(part);
    }
  }
}

std::vector<std::span<std::byte>> HostInputs::places(UnitId unit,
                                                     std::optional<StagingSlot> slot) const {
  LONGSHORE_CHECK(!slot.has_value()) << "the input of unit " << unit << " passes no slot";
  return places_.at(static_cast<size_t>(unit.value));
}

}  // namespace longshore
