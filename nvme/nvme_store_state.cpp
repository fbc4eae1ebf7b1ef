// The half of NvmeStore that streams state and parameters through the I/O window.
#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/number_formats.h"
#include "nvme/nvme_store.h"

namespace longshore {
namespace {

constexpr std::array<PartRole, 3> kStored = {PartRole::kParameters, PartRole::kRest,
                                             PartRole::kFrozen};
// One task's share of a conversion.
constexpr int64_t kConvertBlockElements = int64_t{1} << 18;

template <typename T>
std::span<T> as_span(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <typename T>
std::span<const T> as_span(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

size_t index_of(PartRole role) {
  return static_cast<size_t>(role);
}

}  // namespace

// ---- Leases ----

class NvmeStore::HostParameters final : public ParameterLease {
 public:
  explicit HostParameters(Unit* unit) : unit_(unit) { ++unit_->parameter_leases; }
  ~HostParameters() override { --unit_->parameter_leases; }
  std::span<const std::byte> bytes() const override {
    return unit_->parameters.first(static_cast<size_t>(unit_->parts.parameter_bytes()));
  }

 private:
  Unit* unit_;
};

class NvmeStore::DriveParameters final : public ParameterLease {
 public:
  DriveParameters(Unit* unit, ParameterSlot* slot) : unit_(unit), slot_(slot) {
    ++unit_->parameter_leases;
    ++slot_->leases;
  }
  ~DriveParameters() override {
    --unit_->parameter_leases;
    --slot_->leases;
  }
  std::span<const std::byte> bytes() const override { return slot_->ready; }

 private:
  Unit* unit_;
  ParameterSlot* slot_;
};

class NvmeStore::State final : public StateLease {
 public:
  State(NvmeStore* store, int32_t unit, StateSlot* slot)
      : store_(store), unit_(unit), slot_(slot) {}
  ~State() override { store_->give_back(unit_, *slot_); }
  StateSpans segment(Segment segment) override {
    Unit& unit = store_->at(UnitId(unit_));
    const auto part = [&](Region region) { return store_->region(unit, *slot_, region, segment); };
    const auto moment = [&](Region values, Region units) -> MomentSpan {
      return {moment_format(store_->options_.state, segment), part(values),
              as_span<float>(part(units))};
    };
    const auto s = static_cast<size_t>(segment);
    return {.master = as_span<float>(part(Region::kMaster)),
            .high = as_span<uint16_t>(part(Region::kHigh)),
            .low = as_span<uint16_t>(part(Region::kLow)),
            .exp_avg = moment(Region::kExpAvg, Region::kExpAvgUnits),
            .exp_avg_sq = moment(Region::kExpAvgSq, Region::kExpAvgSqUnits),
            .gradient = unit.gradient.subspan(static_cast<size_t>(unit.gradient_offsets[s]),
                                              static_cast<size_t>(unit.gradient_bytes[s]))};
  }

 private:
  NvmeStore* store_;
  int32_t unit_;
  StateSlot* slot_;
};

// ---- State: read ahead, lease, write behind ----

std::unique_ptr<ShardStore::StateLease> NvmeStore::state(UnitId id) {
  rethrow_failure();
  Unit& unit = at(id);
  LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased already";
  LONGSHORE_CHECK(unit.parameter_leases == 0) << "unit " << id << "'s parameters are leased";
  if (StateSlot* writing = find_state_slot(id.value, StateSlot::Use::kWriting)) {
    finish_writing(*writing);
  }
  for (ParameterSlot& reading : parameter_slots_) {
    // The bytes that it reads must not change under it.
    if (reading.reading && reading.unit == id.value) finish_reading(reading);
  }
  StateSlot* slot = find_state_slot(id.value, StateSlot::Use::kReading);
  if (slot == nullptr) {
    slot = &take_state_slot();
    start_reading(id.value, *slot);
  }
  finish_reading(*slot);
  if (options_.parameters_on_drives && unit.parts.used_bytes(PartRole::kDerived) > 0) {
    convert(unit.parts, part_memory(unit, *slot, PartRole::kParameters),
            part_memory(unit, *slot, PartRole::kDerived));
  }
  slot->use = StateSlot::Use::kLeased;
  unit.state_leased = true;
  read_ahead(id.value);
  return std::make_unique<State>(this, id.value, slot);
}

NvmeStore::StateSlot* NvmeStore::find_state_slot(int32_t unit, StateSlot::Use use) {
  for (StateSlot& slot : state_slots_) {
    if (slot.unit == unit && slot.use == use) return &slot;
  }
  return nullptr;
}

// One that needs no waiting, or none.
NvmeStore::StateSlot* NvmeStore::idle_state_slot() {
  for (StateSlot& slot : state_slots_) {
    if (slot.use == StateSlot::Use::kFree) return &slot;
  }
  for (StateSlot& slot : state_slots_) {
    if (slot.use != StateSlot::Use::kWriting) continue;
    const bool done = std::ranges::all_of(
        slot.ios, [&](PartIo& io) { return !io.active || chunks_->write_finished(io); });
    if (!done) continue;
    finish_writing(slot);
    return &slot;
  }
  return nullptr;
}

NvmeStore::StateSlot& NvmeStore::take_state_slot() {
  if (StateSlot* idle = idle_state_slot()) return *idle;
  StateSlot* oldest = nullptr;
  for (StateSlot& slot : state_slots_) {
    if (slot.use != StateSlot::Use::kWriting) continue;
    if (oldest == nullptr || slot.since < oldest->since) oldest = &slot;
  }
  if (oldest != nullptr) {
    finish_writing(*oldest);
    return *oldest;
  }
  for (StateSlot& slot : state_slots_) {
    if (slot.use != StateSlot::Use::kReading) continue;
    finish_reading(slot);  // read ahead for nothing
    slot.use = StateSlot::Use::kFree;
    return slot;
  }
  LONGSHORE_CHECK(false) << "all " << state_slots_.size() << " slots of the window are leased";
  return state_slots_.front();
}

void NvmeStore::start_reading(int32_t id, StateSlot& slot) {
  const Unit& unit = at(UnitId(id));
  slot.unit = id;
  slot.use = StateSlot::Use::kReading;
  slot.since = ++clock_;
  for (const PartRole role : kStored) {
    const int part = unit.part_ids[index_of(role)];
    const bool frozen_in_host = role == PartRole::kFrozen && !options_.parameters_on_drives;
    if (part < 0 || in_host_memory(unit, role) || frozen_in_host) continue;
    const std::span<std::byte> memory = part_memory(unit, slot, role);
    if (!chunks_->has_bytes(part)) {
      std::memset(memory.data(), 0, memory.size());
      continue;
    }
    chunks_->start_read(part, memory, slot.ios[index_of(role)]);
    traffic_.read += static_cast<Bytes>(memory.size());
  }
}

// Waits for all of them; the first failure, or null.
std::exception_ptr NvmeStore::finish_reads(std::span<PartIo> ios) {
  std::exception_ptr first;
  for (PartIo& io : ios) {
    if (!io.active) continue;
    try {
      chunks_->finish_read(io);
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  return first;
}

void NvmeStore::finish_reading(StateSlot& slot) {
  const std::exception_ptr first = finish_reads(slot.ios);
  if (first == nullptr) return;
  slot.use = StateSlot::Use::kFree;
  std::rethrow_exception(first);
}

void NvmeStore::finish_writing(StateSlot& slot) {
  for (PartIo& io : slot.ios) {
    if (io.active) chunks_->finish_write(io);
  }
  slot.use = StateSlot::Use::kFree;
}

// The next unit with state, in the order of the update, if the window has room for it.
void NvmeStore::read_ahead(int32_t after) {
  const auto count = static_cast<int32_t>(units_.size());
  for (int32_t step = 1; step < count; ++step) {
    const int32_t id = (after + step) % count;
    const Unit& unit = units_[static_cast<size_t>(id)];
    const int part = unit.part_ids[index_of(PartRole::kRest)];
    if (part < 0) continue;
    const bool in_window = std::ranges::any_of(state_slots_, [&](const StateSlot& slot) {
      return slot.unit == id && slot.use != StateSlot::Use::kFree;
    });
    if (unit.state_leased || in_window || !chunks_->has_bytes(part)) return;
    if (StateSlot* slot = idle_state_slot()) start_reading(id, *slot);
    return;
  }
}

void NvmeStore::give_back(int32_t id, StateSlot& slot) noexcept {
  at(UnitId(id)).state_leased = false;
  slot.use = StateSlot::Use::kFree;
  try {
    write_behind(id, slot);
  } catch (...) {
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

void NvmeStore::write_behind(int32_t id, StateSlot& slot) {
  Unit& unit = at(UnitId(id));
  bool changed = false;
  for (const PartRole role : kStored) {
    const int part = unit.part_ids[index_of(role)];
    if (part < 0) continue;
    const std::span<std::byte> memory = part_memory(unit, slot, role);
    if (role == PartRole::kFrozen && !options_.parameters_on_drives) {
      const auto from = static_cast<size_t>(unit.parts.trainable_parameter_bytes());
      std::memset(memory.data(), 0, memory.size());
      std::memcpy(memory.data(), unit.parameters.data() + from,
                  static_cast<size_t>(unit.parts.used_bytes(role)));
    }
    SealedPart& sealed = slot.sealed[index_of(role)];
    chunks_->seal(part, memory, sealed);
    const bool newest = chunks_->is_newest(sealed);
    LONGSHORE_CHECK(newest || role != PartRole::kFrozen || !committed())
        << "unit " << id << "'s frozen parameters were changed";
    changed = changed || !newest;
  }
  if (!changed) return;
  ++unit.changes;
  refresh_host_parameters(unit, slot);
  slot.use = StateSlot::Use::kWriting;
  slot.unit = id;
  slot.since = ++clock_;
  for (const PartRole role : kStored) {
    const int part = unit.part_ids[index_of(role)];
    if (part < 0 || (role == PartRole::kFrozen && committed())) continue;
    chunks_->start_write(slot.sealed[index_of(role)], slot.ios[index_of(role)]);
    traffic_.written += static_cast<Bytes>(slot.sealed[index_of(role)].memory.size());
  }
}

// Into the version in the making, as it is; nothing where it is there already.
void NvmeStore::write_again(int32_t id) {
  Unit& unit = at(UnitId(id));
  for (const PartRole role : {PartRole::kParameters, PartRole::kRest}) {
    const int part = unit.part_ids[index_of(role)];
    if (part < 0 || chunks_->is_written(part)) continue;
    StateSlot& slot = take_state_slot();
    const std::span<std::byte> memory = part_memory(unit, slot, role);
    PartIo io;
    if (!in_host_memory(unit, role)) {
      chunks_->start_read(part, memory, io);
      chunks_->finish_read(io);
    }
    SealedPart sealed;
    chunks_->seal(part, memory, sealed);
    chunks_->start_write(sealed, io);
    chunks_->finish_write(io);
    slot.use = StateSlot::Use::kFree;
    traffic_.written += static_cast<Bytes>(memory.size());
  }
}

// ---- Parameters in host memory ----

// Two halves are joined again after each update; the other derived form the update itself writes.
void NvmeStore::refresh_host_parameters(Unit& unit, StateSlot& slot) {
  if (options_.parameters_on_drives || !unit.parts.joins()) return;
  convert(unit.parts, part_memory(unit, slot, PartRole::kParameters), unit.parameters);
}

void NvmeStore::read_host_parameters(int32_t id) {
  Unit& unit = at(UnitId(id));
  StateSlot& slot = take_state_slot();
  for (const PartRole role : {PartRole::kParameters, PartRole::kFrozen}) {
    const int part = unit.part_ids[index_of(role)];
    if (part < 0) continue;
    // The frozen part comes second: whole blocks of the first may reach into its place.
    const std::span<std::byte> memory = part_memory(unit, slot, role);
    PartIo& io = slot.ios[index_of(role)];
    chunks_->start_read(part, memory, io);
    chunks_->finish_read(io);
    traffic_.read += static_cast<Bytes>(memory.size());
    if (role == PartRole::kFrozen) {
      std::memcpy(unit.parameters.data() + unit.parts.trainable_parameter_bytes(), memory.data(),
                  static_cast<size_t>(unit.parts.used_bytes(role)));
    } else if (!unit.parts.direct()) {
      convert(unit.parts, memory, unit.parameters);
    }
  }
}

// The trainable parameters as the device reads them, from the part.
void NvmeStore::convert(const UnitParts& parts, std::span<const std::byte> part,
                        std::span<std::byte> parameters) const {
  const Bytes width = width_of(options_.state.compute);
  const int64_t elements = parts.trainable_parameter_bytes() / width;
  const auto count = static_cast<size_t>(elements);
  const int64_t blocks = (elements + kConvertBlockElements - 1) / kConvertBlockElements;
  pool_->for_each_block(blocks, [&](int64_t block) {
    const auto begin = static_cast<size_t>(block * kConvertBlockElements);
    const size_t end = std::min(begin + static_cast<size_t>(kConvertBlockElements), count);
    if (parts.joins()) {
      const auto halves = as_span<uint16_t>(part.first(count * 4));
      const auto joined = as_span<float>(parameters);
      for (size_t i = begin; i < end; ++i) joined[i] = join_master(halves[i], halves[count + i]);
    } else {
      const auto master = as_span<float>(part.first(count * 4));
      const auto high = as_span<uint16_t>(parameters);
      for (size_t i = begin; i < end; ++i) high[i] = master_high(master[i]);
    }
  });
}

// ---- Parameters on the drives ----

std::unique_ptr<ShardStore::ParameterLease> NvmeStore::parameters(UnitId id) {
  rethrow_failure();
  Unit& unit = at(id);
  LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased";
  if (!options_.parameters_on_drives) return std::make_unique<HostParameters>(&unit);
  ParameterSlot* slot = find_parameter_slot(unit, id.value);
  if (slot == nullptr) {
    slot = idle_parameter_slot();
    LONGSHORE_CHECK(slot != nullptr) << "all parameter slots of the window are leased";
    start_reading(id.value, *slot);
  }
  if (slot->reading) finish_reading(*slot);
  return std::make_unique<DriveParameters>(&unit, slot);
}

void NvmeStore::prefetch_parameters(UnitId id) {
  const Unit& unit = at(id);
  if (!options_.parameters_on_drives || unit.state_leased) return;
  if (find_parameter_slot(unit, id.value) != nullptr) return;
  if (ParameterSlot* slot = idle_parameter_slot()) start_reading(id.value, *slot);
}

NvmeStore::ParameterSlot* NvmeStore::find_parameter_slot(const Unit& unit, int32_t id) {
  for (ParameterSlot& slot : parameter_slots_) {
    if (slot.unit == id && slot.changes == unit.changes) return &slot;
  }
  return nullptr;
}

// The one that was used longest ago; a read that nobody waited for is ended first.
NvmeStore::ParameterSlot* NvmeStore::idle_parameter_slot() {
  ParameterSlot* oldest = nullptr;
  for (ParameterSlot& slot : parameter_slots_) {
    if (slot.leases > 0) continue;
    if (oldest == nullptr || slot.since < oldest->since) oldest = &slot;
  }
  if (oldest != nullptr && oldest->reading) finish_reading(*oldest);
  return oldest;
}

void NvmeStore::start_reading(int32_t id, ParameterSlot& slot) {
  Unit& unit = at(UnitId(id));
  if (StateSlot* writing = find_state_slot(id, StateSlot::Use::kWriting)) finish_writing(*writing);
  slot.unit = id;
  slot.changes = unit.changes;
  slot.since = ++clock_;
  slot.reading = true;
  size_t begin = 0;
  for (const PartRole role : {PartRole::kParameters, PartRole::kFrozen}) {
    const int part = unit.part_ids[index_of(role)];
    const auto bytes = static_cast<size_t>(unit.parts.part_bytes(role));
    const std::span<std::byte> memory = slot.memory.subspan(begin, bytes);
    begin += bytes;
    if (part < 0) continue;
    if (!chunks_->has_bytes(part)) {
      std::memset(memory.data(), 0, bytes);
      continue;
    }
    chunks_->start_read(part, memory, slot.ios[index_of(role)]);
    traffic_.read += static_cast<Bytes>(bytes);
  }
}

void NvmeStore::finish_reading(ParameterSlot& slot) {
  const UnitParts& parts = at(UnitId(slot.unit)).parts;
  slot.reading = false;
  const std::exception_ptr first = finish_reads(slot.ios);
  if (first != nullptr) {
    slot.unit = -1;
    std::rethrow_exception(first);
  }
  const auto raw_bytes = static_cast<size_t>(parts.part_bytes(PartRole::kParameters));
  const auto frozen_bytes = static_cast<size_t>(parts.used_bytes(PartRole::kFrozen));
  const std::span<std::byte> frozen = slot.memory.subspan(raw_bytes, frozen_bytes);
  std::span<std::byte> out = slot.memory;
  if (!parts.direct()) {
    out = slot.memory.subspan(raw_bytes + static_cast<size_t>(parts.part_bytes(PartRole::kFrozen)));
    convert(parts, slot.memory.first(raw_bytes), out);
  }
  std::memmove(out.data() + parts.trainable_parameter_bytes(), frozen.data(), frozen_bytes);
  slot.ready = out.first(static_cast<size_t>(parts.parameter_bytes()));
}

}  // namespace longshore
