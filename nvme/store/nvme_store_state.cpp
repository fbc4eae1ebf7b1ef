// The part of NvmeStore that streams state through the I/O window: the update's thread.
#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/typed_span.h"
#include "nvme/store/nvme_store.h"

namespace longshore {

// ---- Leases ----

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
    return {.master = as_span<float>(part(Region::kMaster)),
            .high = as_span<uint16_t>(part(Region::kHigh)),
            .low = as_span<uint16_t>(part(Region::kLow)),
            .exp_avg = moment(Region::kExpAvg, Region::kExpAvgUnits),
            .exp_avg_sq = moment(Region::kExpAvgSq, Region::kExpAvgSqUnits)};
  }

 private:
  NvmeStore* store_;
  int32_t unit_;
  StateSlot* slot_;
};

// ---- State: read ahead, lease, write behind ----

std::unique_ptr<ShardStore::StateLease> NvmeStore::state(UnitId id) {
  Unit& unit = at(id);
  {
    Lock lock(mutex_);
    rethrow_failure();
    LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased already";
    LONGSHORE_CHECK(unit.parameter_leases == 0) << "unit " << id << "'s parameters are leased";
    unit.state_leased = true;
    // The bytes that they read must not change under them.
    settle_parameter_reads(id.value, lock);
  }
  std::unique_ptr<State> lease;
  try {
    StateSlot& slot = read_state(id.value);
    if (options_.parameters_on_drives && unit.parts.used_bytes(PartRole::kDerived) > 0) {
      convert(unit.parts, part_memory(unit, slot, PartRole::kParameters),
              part_memory(unit, slot, PartRole::kDerived));
    }
    lease = std::make_unique<State>(this, id.value, &slot);
    set_use(slot, StateSlot::Use::kLeased);
  } catch (...) {
    const Lock lock(mutex_);
    unit.state_leased = false;
    throw;
  }
  read_ahead(id.value);
  return lease;
}

// The unit's state in a slot, read and checked.
NvmeStore::StateSlot& NvmeStore::read_state(int32_t id) {
  if (StateSlot* writing = find_state_slot(id, StateSlot::Use::kWriting)) finish_writing(*writing);
  StateSlot* slot = find_state_slot(id, StateSlot::Use::kReading);
  if (slot == nullptr) {
    slot = &take_state_slot();
    start_reading(id, *slot);
  }
  finish_reading(*slot);
  return *slot;
}

void NvmeStore::set_use(StateSlot& slot, StateSlot::Use use) {
  const Lock lock(mutex_);
  slot.use = use;
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
    set_use(slot, StateSlot::Use::kFree);
    return slot;
  }
  LONGSHORE_CHECK(false) << "all " << state_slots_.size() << " slots of the window are leased";
  return state_slots_.front();
}

void NvmeStore::start_reading(int32_t id, StateSlot& slot) {
  const Unit& unit = at(UnitId(id));
  Bytes read = 0;
  {
    const Lock lock(mutex_);
    slot.unit = id;
    slot.use = StateSlot::Use::kReading;
    slot.since = ++clock_;
  }
  for (const PartRole role : kStoredRoles) {
    const int part = unit.part_ids[index_of(role)];
    const bool frozen_in_host = role == PartRole::kFrozen && !options_.parameters_on_drives;
    if (part < 0 || in_host_memory(unit, role) || frozen_in_host) continue;
    const std::span<std::byte> memory = part_memory(unit, slot, role);
    if (!chunks_->has_bytes(part)) {
      std::memset(memory.data(), 0, memory.size());
      continue;
    }
    chunks_->start_read(part, memory, slot.ios[index_of(role)]);
    read += static_cast<Bytes>(memory.size());
  }
  const Lock lock(mutex_);
  traffic_.read += read;
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
  set_use(slot, StateSlot::Use::kFree);
  std::rethrow_exception(first);
}

void NvmeStore::finish_writing(StateSlot& slot) {
  for (PartIo& io : slot.ios) {
    if (io.active) chunks_->finish_write(io);
  }
  Lock lock(mutex_);
  // HOST WAIT: a fetch copies the parameters out of this memory.
  changed_.wait(lock, [&] { return slot.copiers == 0; });
  slot.use = StateSlot::Use::kFree;
}

// The next unit with state, `step` further or back; itself where it is the only one.
int32_t NvmeStore::next_with_state(int32_t unit, int32_t step) const {
  const auto count = static_cast<int32_t>(units_.size());
  int32_t id = unit;
  do {
    id = (id + step + count) % count;
  } while (id != unit && units_[static_cast<size_t>(id)].part_ids[index_of(PartRole::kRest)] < 0);
  return id;
}

// The unit whose update comes next, if the window has room for it.
void NvmeStore::read_ahead(int32_t after) {
  if (last_leased_ >= 0 && last_leased_ != after) {
    const bool backwards =
        next_with_state(last_leased_, -1) == after && next_with_state(last_leased_, 1) != after;
    read_ahead_step_ = backwards ? -1 : 1;
  }
  last_leased_ = after;
  const int32_t id = next_with_state(after, read_ahead_step_);
  const Unit& unit = units_[static_cast<size_t>(id)];
  const bool in_window = std::ranges::any_of(state_slots_, [&](const StateSlot& slot) {
    return slot.unit == id && slot.use != StateSlot::Use::kFree;
  });
  const int part = unit.part_ids[index_of(PartRole::kRest)];
  if (id == after || in_window || !chunks_->has_bytes(part)) return;
  if (StateSlot* slot = idle_state_slot()) start_reading(id, *slot);
}

void NvmeStore::give_back(int32_t id, StateSlot& slot) noexcept {
  std::exception_ptr failure;
  try {
    write_behind(id, slot);
  } catch (...) {
    failure = std::current_exception();
  }
  const Lock lock(mutex_);
  if (slot.use == StateSlot::Use::kLeased) slot.use = StateSlot::Use::kFree;  // nothing to write
  at(UnitId(id)).state_leased = false;
  if (failure_ == nullptr) failure_ = failure;
}

void NvmeStore::write_behind(int32_t id, StateSlot& slot) {
  Unit& unit = at(UnitId(id));
  bool changed = false;
  std::array<bool, 3> writes{};  // by role
  for (const PartRole role : kStoredRoles) {
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
    writes[index_of(role)] = !newest || role != PartRole::kFrozen;
  }
  if (!changed) return;
  refresh_host_parameters(unit, slot);
  Bytes written = 0;
  set_use(slot, StateSlot::Use::kWriting);
  for (const PartRole role : kStoredRoles) {
    if (!writes[index_of(role)]) continue;
    chunks_->start_write(slot.sealed[index_of(role)], slot.ios[index_of(role)]);
    written += static_cast<Bytes>(slot.sealed[index_of(role)].memory.size());
  }
  const Lock lock(mutex_);
  ++unit.changes;
  slot.since = ++clock_;
  traffic_.written += written;
}

// Into the version in the making, as it is; nothing where it is there already.
void NvmeStore::write_again(int32_t id) {
  Unit& unit = at(UnitId(id));
  constexpr std::array<PartRole, 2> kVersioned = {PartRole::kParameters, PartRole::kRest};
  const bool missing = std::ranges::any_of(kVersioned, [&](PartRole role) {
    const int part = unit.part_ids[index_of(role)];
    return part >= 0 && !chunks_->is_written(part);
  });
  if (!missing) return;
  StateSlot& slot = read_state(id);
  for (const PartRole role : kVersioned) {
    const int part = unit.part_ids[index_of(role)];
    if (part < 0) continue;
    chunks_->seal(part, part_memory(unit, slot, role), slot.sealed[index_of(role)]);
  }
  // From here on a fetch finds the unit in the window: the bytes on the drives are on their way.
  Lock lock(mutex_);
  settle_parameter_reads(id, lock);
  slot.use = StateSlot::Use::kWriting;
  slot.since = ++clock_;
  for (const PartRole role : kVersioned) {
    if (unit.part_ids[index_of(role)] < 0) continue;
    const SealedPart& sealed = slot.sealed[index_of(role)];
    chunks_->start_write(sealed, slot.ios[index_of(role)]);
    traffic_.written += static_cast<Bytes>(sealed.memory.size());
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

}  // namespace longshore
