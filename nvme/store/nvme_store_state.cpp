// The state of NvmeStore and its movement through the slots.
#include <cstring>

#include "base/bytes.h"
#include "base/errors.h"
#include "nvme/store/nvme_store.h"

namespace longshore {

// ---- Leases ----

class NvmeStore::State final : public StateLease {
 public:
  // With `whole`, the destructor writes the state and frees the slot.
  State(NvmeStore* store, UnitId unit, StateSlot slot, bool whole)
      : store_(store), unit_(unit), slot_(slot), whole_(whole) {}
  ~State() override { store_->end_lease_of_state(unit_, slot_, whole_); }
  StateSpans segment(Segment segment) override {
    Unit& unit = of_unit(store_->units_, unit_);
    return state_spans(store_->options_.state, segment, [&](Region region) {
      return store_->region(unit, store_->state_slots_[slot_], region, segment);
    });
  }

 private:
  NvmeStore* store_;
  UnitId unit_;
  StateSlot slot_;
  bool whole_;
};

std::unique_ptr<ShardStore::StateLease> NvmeStore::state(UnitId id) {
  begin_lease_of_state(id);
  std::optional<StateSlot> slot;
  try {
    slot = claim_any(state_owners_, id, "state");
    fill_state_slot(of_unit(units_, id), state_slots_[*slot]);
    return std::make_unique<State>(this, id, *slot, /*whole=*/true);
  } catch (...) {
    if (slot) state_owners_.free(*slot, id);
    const MutexLock lock(mutex_);
    of_unit(units_, id).state_leased = false;
    throw;
  }
}

std::unique_ptr<ShardStore::StateLease> NvmeStore::state_in(UnitId id, StateSlot slot) {
  state_owners_.check(slot, id);
  begin_lease_of_state(id);
  return std::make_unique<State>(this, id, slot, /*whole=*/false);
}

void NvmeStore::begin_lease_of_state(UnitId id) {
  Unit& unit = of_unit(units_, id);
  const MutexLock lock(mutex_);
  rethrow_failure();
  LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased already";
  LONGSHORE_CHECK(unit.parameter_leases == 0) << "unit " << id << "'s parameters are leased";
  unit.state_leased = true;
}

void NvmeStore::end_lease_of_state(UnitId id, StateSlot slot, bool whole) noexcept {
  std::exception_ptr failure;
  try {
    refresh_host_parameters(of_unit(units_, id), state_slots_[slot]);
    if (whole) write_state(id, slot);
  } catch (...) {
    failure = std::current_exception();
  }
  const MutexLock lock(mutex_);
  of_unit(units_, id).state_leased = false;
  if (failure_ == nullptr) failure_ = failure;
}

// ---- Reading ----

void NvmeStore::read_state(UnitId id, StateSlot slot) {
  state_owners_.claim(slot, id);
  try {
    fill_state_slot(of_unit(units_, id), state_slots_[slot]);
  } catch (...) {
    state_owners_.free(slot, id);
    throw;
  }
}

// Reads and checks the unit's state into the slot.
void NvmeStore::fill_state_slot(Unit& unit, StateMemory& slot) {
  for (const PartRole role : kStoredRoles) {
    const bool frozen_in_host = role == PartRole::kFrozen && !options_.parameters_on_drives;
    if (in_host_memory(unit, role) || frozen_in_host) continue;
    start_read(unit.part_ids[index_of(role)], part_memory(unit, slot, role),
               slot.ios[index_of(role)], /*urgent=*/false);
  }
  finish_reads(slot.ios);
  if (!options_.parameters_on_drives || unit.parts.used_bytes(PartRole::kDerived) == 0) return;
  convert(unit.parts, part_memory(unit, slot, PartRole::kParameters),
          part_memory(unit, slot, PartRole::kDerived));
}

// Fills with zeros if the part was never written; does nothing if the unit lacks the part (-1).
void NvmeStore::start_read(int part, std::span<std::byte> memory, PartIo& io, bool urgent) {
  if (part < 0) return;
  {
    const MutexLock lock(mutex_);
    if (chunks_->has_bytes(part)) {
      chunks_->start_read(part, memory, io, urgent);
      read_bytes_ += static_cast<Bytes>(memory.size());
      return;
    }
  }
  std::memset(memory.data(), 0, memory.size());
}

// Waits for all reads, then throws the first failure.
void NvmeStore::finish_reads(std::span<PartIo> ios) {
  std::exception_ptr first;
  for (PartIo& io : ios) {
    if (!io.active) continue;
    try {
      chunks_->finish_read(io);
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

// ---- Writing ----

void NvmeStore::write_state(UnitId id, StateSlot slot) {
  state_owners_.check(slot, id);
  try {
    seal_and_write(id, of_unit(units_, id), state_slots_[slot]);
  } catch (...) {
    state_owners_.free(slot, id);
    throw;
  }
  state_owners_.free(slot, id);
}

void NvmeStore::seal_and_write(UnitId id, Unit& unit, StateMemory& slot) {
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
    LONGSHORE_CHECK(newest || role != PartRole::kFrozen || !has_point())
        << "unit " << id << "'s frozen parameters were changed";
    changed = changed || !newest;
    writes[index_of(role)] = !newest || role != PartRole::kFrozen;
  }
  if (changed) write_sealed(slot, writes);
}

void NvmeStore::write_sealed(StateMemory& slot, const std::array<bool, 3>& roles) {
  {
    const MutexLock lock(mutex_);
    for (const PartRole role : kStoredRoles) {
      if (!roles[index_of(role)]) continue;
      const SealedPart& sealed = slot.sealed[index_of(role)];
      chunks_->start_write(sealed, slot.ios[index_of(role)]);
      written_bytes_ += static_cast<Bytes>(sealed.memory.size());
    }
  }
  for (PartIo& io : slot.ios) {
    if (io.active) chunks_->finish_write(io);
  }
}

// Copies the unit unchanged into the pending version, unless it was written there already.
void NvmeStore::write_again(UnitId id) {
  Unit& unit = of_unit(units_, id);
  std::array<bool, 3> writes{};  // by role
  bool missing = false;
  for (const PartRole role : {PartRole::kParameters, PartRole::kRest}) {
    const int part = unit.part_ids[index_of(role)];
    writes[index_of(role)] = part >= 0;
    missing = missing || (part >= 0 && !chunks_->is_written(part));
  }
  if (!missing) return;
  const StateSlot slot = claim_any(state_owners_, id, "state");
  fill_state_slot(unit, state_slots_[slot]);
  for (const PartRole role : kStoredRoles) {
    if (!writes[index_of(role)]) continue;
    chunks_->seal(unit.part_ids[index_of(role)], part_memory(unit, state_slots_[slot], role),
                  state_slots_[slot].sealed[index_of(role)]);
  }
  write_sealed(state_slots_[slot], writes);
  state_owners_.free(slot, id);
}

// ---- Parameters in host memory ----

// Joined halves are refreshed after each update; the update itself writes the other derived form.
void NvmeStore::refresh_host_parameters(Unit& unit, StateMemory& slot) {
  if (options_.parameters_on_drives || !unit.parts.joins()) return;
  convert(unit.parts, part_memory(unit, slot, PartRole::kParameters), unit.parameters);
}

void NvmeStore::read_host_parameters(UnitId id) {
  Unit& unit = of_unit(units_, id);
  StateMemory& slot = state_slots_.front();
  for (const PartRole role : {PartRole::kParameters, PartRole::kFrozen}) {
    const int part = unit.part_ids[index_of(role)];
    if (part < 0) continue;
    // The frozen part comes second, because whole blocks of the first may overlap its offset.
    const std::span<std::byte> memory = part_memory(unit, slot, role);
    PartIo& io = slot.ios[index_of(role)];
    chunks_->start_read(part, memory, io);
    chunks_->finish_read(io);
    read_bytes_ += static_cast<Bytes>(memory.size());
    if (role == PartRole::kFrozen) {
      std::memcpy(unit.parameters.data() + unit.parts.trainable_parameter_bytes(), memory.data(),
                  static_cast<size_t>(unit.parts.used_bytes(role)));
    } else if (!unit.parts.direct()) {
      convert(unit.parts, memory, unit.parameters);
    }
  }
}

}  // namespace longshore
