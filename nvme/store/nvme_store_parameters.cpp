// The part of NvmeStore that gives parameters, from host memory or through the I/O window.
#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/number_formats.h"
#include "base/typed_span.h"
#include "nvme/store/nvme_store.h"

namespace longshore {
namespace {

// One task's share of a conversion.
constexpr int64_t kConvertBlockElements = int64_t{1} << 18;

}  // namespace

// Made with the mutex held, after the lease was counted.
class NvmeStore::HostParameters final : public ParameterLease {
 public:
  HostParameters(NvmeStore* store, Unit* unit) : store_(store), unit_(unit) {}
  ~HostParameters() override {
    const Lock lock(store_->mutex_);
    --unit_->parameter_leases;
  }
  std::span<const std::byte> bytes() const override {
    return unit_->parameters.first(static_cast<size_t>(unit_->parts.parameter_bytes()));
  }

 private:
  NvmeStore* store_;
  Unit* unit_;
};

// The same.
class NvmeStore::DriveParameters final : public ParameterLease {
 public:
  DriveParameters(NvmeStore* store, Unit* unit, ParameterSlot* slot)
      : store_(store), unit_(unit), slot_(slot) {}
  ~DriveParameters() override {
    const Lock lock(store_->mutex_);
    --unit_->parameter_leases;
    --slot_->leases;
  }
  std::span<const std::byte> bytes() const override { return slot_->ready; }

 private:
  NvmeStore* store_;
  Unit* unit_;
  ParameterSlot* slot_;
};

std::unique_ptr<ShardStore::ParameterLease> NvmeStore::parameters(UnitId id) {
  Unit& unit = at(id);
  Lock lock(mutex_);
  rethrow_failure();
  LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased";
  ++unit.parameter_leases;  // while the slot is filled, too
  if (!options_.parameters_on_drives) return std::make_unique<HostParameters>(this, &unit);
  try {
    ParameterSlot& slot = fill_parameter_slot(id.value, lock);
    ++slot.leases;
    return std::make_unique<DriveParameters>(this, &unit, &slot);
  } catch (...) {
    --unit.parameter_leases;
    throw;
  }
}

void NvmeStore::prefetch_parameters(UnitId id) {
  const Unit& unit = at(id);
  Lock lock(mutex_);
  if (!options_.parameters_on_drives || unit.state_leased) return;
  if (find_parameter_slot(unit, id.value) != nullptr) return;
  ParameterSlot* slot = idle_parameter_slot(/*may_drop_reads=*/false);
  if (slot != nullptr) start_filling(id.value, *slot, lock);
}

// ---- Slots ----

NvmeStore::ParameterSlot* NvmeStore::find_parameter_slot(const Unit& unit, int32_t id) {
  for (ParameterSlot& slot : parameter_slots_) {
    const bool used = slot.use != ParameterSlot::Use::kEmpty;
    if (used && slot.unit == id && slot.changes == unit.changes) return &slot;
  }
  return nullptr;
}

// The one that was used longest ago. One that is being read for somebody only where it must be.
NvmeStore::ParameterSlot* NvmeStore::idle_parameter_slot(bool may_drop_reads) {
  ParameterSlot* best = nullptr;
  for (ParameterSlot& slot : parameter_slots_) {
    if (slot.leases > 0 || slot.use == ParameterSlot::Use::kFilling) continue;
    const bool reading = slot.use == ParameterSlot::Use::kReading;
    if (reading && !may_drop_reads) continue;
    const auto rank = [](const ParameterSlot& one) {
      return std::pair(one.use == ParameterSlot::Use::kReading, one.since);
    };
    if (best == nullptr || rank(slot) < rank(*best)) best = &slot;
  }
  return best;
}

// A slot with the unit's newest parameters.
NvmeStore::ParameterSlot& NvmeStore::fill_parameter_slot(int32_t id, Lock& lock) {
  const Unit& unit = at(UnitId(id));
  while (true) {
    ParameterSlot* slot = find_parameter_slot(unit, id);
    if (slot != nullptr && slot->use == ParameterSlot::Use::kReady) return *slot;
    if (slot != nullptr && slot->use == ParameterSlot::Use::kReading) {
      const std::exception_ptr failure = finish_filling(*slot, lock);
      if (failure != nullptr) std::rethrow_exception(failure);
      continue;
    }
    if (slot == nullptr) slot = idle_parameter_slot(/*may_drop_reads=*/true);
    const bool filling = std::ranges::any_of(parameter_slots_, [](const ParameterSlot& one) {
      return one.use == ParameterSlot::Use::kFilling;
    });
    LONGSHORE_CHECK(slot != nullptr || filling) << "all parameter slots of the window are leased";
    if (slot == nullptr || slot->use == ParameterSlot::Use::kFilling) {
      changed_.wait(lock);  // HOST WAIT: another thread ends a read of the slot
    } else if (slot->use == ParameterSlot::Use::kReading) {
      finish_filling(*slot, lock);  // what it was read for never came; nor does its failure matter
    } else {
      start_filling(id, *slot, lock);
    }
  }
}

void NvmeStore::start_filling(int32_t id, ParameterSlot& slot, Lock& lock) {
  const Unit& unit = at(UnitId(id));
  slot.unit = id;
  slot.changes = unit.changes;
  slot.since = ++clock_;
  if (StateSlot* writing = find_state_slot(id, StateSlot::Use::kWriting)) {
    copy_from(*writing, slot, lock);
    return;
  }
  slot.use = ParameterSlot::Use::kReading;
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
    chunks_->start_read(part, memory, slot.ios[index_of(role)], /*urgent=*/true);
    traffic_.read += static_cast<Bytes>(bytes);
  }
}

// The unit was just updated: its bytes are on their way to the drives, and still in the window.
void NvmeStore::copy_from(StateSlot& source, ParameterSlot& slot, Lock& lock) {
  const Unit& unit = at(UnitId(slot.unit));
  slot.use = ParameterSlot::Use::kFilling;
  ++source.copiers;
  lock.unlock();
  size_t begin = 0;
  for (const PartRole role : {PartRole::kParameters, PartRole::kFrozen}) {
    const std::span<const std::byte> memory = part_memory(unit, source, role);
    if (!memory.empty()) std::memcpy(slot.memory.data() + begin, memory.data(), memory.size());
    begin += memory.size();
  }
  arrange(slot);
  lock.lock();
  --source.copiers;
  slot.use = ParameterSlot::Use::kReady;
  changed_.notify_all();
}

// Waits for the read. The failure, where there is one: the slot is empty then.
std::exception_ptr NvmeStore::finish_filling(ParameterSlot& slot, Lock& lock) {
  slot.use = ParameterSlot::Use::kFilling;
  lock.unlock();
  const std::exception_ptr failure = finish_reads(slot.ios);
  if (failure == nullptr) arrange(slot);
  lock.lock();
  slot.use = failure == nullptr ? ParameterSlot::Use::kReady : ParameterSlot::Use::kEmpty;
  changed_.notify_all();
  return failure;
}

// Ends the reads of the unit; whoever wants its parameters later meets the failure of one again.
void NvmeStore::settle_parameter_reads(int32_t id, Lock& lock) {
  for (ParameterSlot& slot : parameter_slots_) {
    if (slot.unit != id) continue;
    if (slot.use == ParameterSlot::Use::kReading) finish_filling(slot, lock);
    // HOST WAIT: another thread ends a read of the unit.
    changed_.wait(lock,
                  [&] { return slot.unit != id || slot.use != ParameterSlot::Use::kFilling; });
  }
}

// The parameters as the device reads them, from the parts as they were read.
void NvmeStore::arrange(ParameterSlot& slot) const {
  const UnitParts& parts = units_[static_cast<size_t>(slot.unit)].parts;
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

}  // namespace longshore
