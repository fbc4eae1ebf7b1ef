// The parameters of NvmeStore: from host memory, or through their slots.
#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/number_formats.h"
#include "nvme/store/nvme_store.h"

namespace longshore {
namespace {

// The elements that one task of a conversion handles.
constexpr int64_t kConvertBlockElements = int64_t{1} << 18;

}  // namespace

class NvmeStore::HostParameters final : public ParameterLease {
 public:
  HostParameters(NvmeStore* store, UnitId unit) : store_(store), unit_(unit) {
    store_->begin_lease_of_parameters(unit_);
  }
  ~HostParameters() override { store_->end_lease_of_parameters(unit_); }
  std::span<const std::byte> bytes() const override {
    const Unit& unit = store_->at(unit_);
    return unit.parameters.first(static_cast<size_t>(unit.parts.parameter_bytes()));
  }

 private:
  NvmeStore* store_;
  UnitId unit_;
};

class NvmeStore::DriveParameters final : public ParameterLease {
 public:
  DriveParameters(NvmeStore* store, UnitId unit, ParameterSlot slot)
      : store_(store), unit_(unit), slot_(slot) {
    store_->parameter_owners_.check(slot_, unit_);
    store_->begin_lease_of_parameters(unit_);
  }
  ~DriveParameters() override {
    store_->end_lease_of_parameters(unit_);
    store_->parameter_owners_.free(slot_, unit_);
  }
  std::span<const std::byte> bytes() const override {
    return store_->parameter_slots_[slot_].ready;
  }

 private:
  NvmeStore* store_;
  UnitId unit_;
  ParameterSlot slot_;
};

void NvmeStore::begin_lease_of_parameters(UnitId id) {
  Unit& unit = at(id);
  const MutexLock lock(mutex_);
  rethrow_failure();
  LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased";
  ++unit.parameter_leases;
}

void NvmeStore::end_lease_of_parameters(UnitId id) {
  const MutexLock lock(mutex_);
  --at(id).parameter_leases;
}

std::unique_ptr<ShardStore::ParameterLease> NvmeStore::parameters(UnitId id) {
  if (!options_.parameters_on_drives) return std::make_unique<HostParameters>(this, id);
  const ParameterSlot slot = claim_any(parameter_owners_, id, "parameters");
  try {
    fill_parameter_slot(at(id), parameter_slots_[slot]);
    return std::make_unique<DriveParameters>(this, id, slot);
  } catch (...) {
    parameter_owners_.free(slot, id);
    throw;
  }
}

std::unique_ptr<ShardStore::ParameterLease> NvmeStore::parameters_in(UnitId id,
                                                                     ParameterSlot slot) {
  LONGSHORE_CHECK(options_.parameters_on_drives) << "parameters are in host memory";
  return std::make_unique<DriveParameters>(this, id, slot);
}

void NvmeStore::read_parameters(UnitId id, ParameterSlot slot) {
  Unit& unit = at(id);
  parameter_owners_.claim(slot, id);
  try {
    fill_parameter_slot(unit, parameter_slots_[slot]);
  } catch (...) {
    parameter_owners_.free(slot, id);
    throw;
  }
}

void NvmeStore::fill_parameter_slot(Unit& unit, ParameterMemory& slot) {
  std::array<std::span<std::byte>, 3> memory;  // by role
  size_t begin = 0;
  for (const PartRole role : {PartRole::kParameters, PartRole::kFrozen}) {
    const auto bytes = static_cast<size_t>(unit.parts.part_bytes(role));
    memory[index_of(role)] = slot.memory.subspan(begin, bytes);
    begin += bytes;
    // These reads are urgent, because a fetch waits for them; bulk reads of state can wait.
    start_read(unit.part_ids[index_of(role)], memory[index_of(role)], slot.ios[index_of(role)],
               /*urgent=*/true);
  }
  finish_reads(slot.ios);
  arrange(unit.parts, memory[index_of(PartRole::kParameters)], memory[index_of(PartRole::kFrozen)],
          slot);
}

void NvmeStore::pass_parameters(UnitId id, StateSlot from, ParameterSlot to) {
  const Unit& unit = at(id);
  state_owners_.check(from, id);
  parameter_owners_.claim(to, id);
  StateMemory& source = state_slots_[from];
  arrange(unit.parts, part_memory(unit, source, PartRole::kParameters),
          part_memory(unit, source, PartRole::kFrozen), parameter_slots_[to]);
}

// Puts the parameters into the slot in the device layout; the parts may already be in the slot.
void NvmeStore::arrange(const UnitParts& parts, std::span<const std::byte> parameters,
                        std::span<const std::byte> frozen, ParameterMemory& slot) const {
  const auto trainable_bytes = static_cast<size_t>(parts.trainable_parameter_bytes());
  std::span<std::byte> out = slot.memory;
  if (!parts.direct()) {
    out = out.subspan(static_cast<size_t>(parts.part_bytes(PartRole::kParameters) +
                                          parts.part_bytes(PartRole::kFrozen)));
    convert(parts, parameters, out);
  } else if (parameters.data() != out.data() && trainable_bytes > 0) {
    std::memcpy(out.data(), parameters.data(), trainable_bytes);
  }
  const auto frozen_bytes = static_cast<size_t>(parts.used_bytes(PartRole::kFrozen));
  if (frozen_bytes > 0) std::memmove(out.data() + trainable_bytes, frozen.data(), frozen_bytes);
  slot.ready = out.first(static_cast<size_t>(parts.parameter_bytes()));
}

// Converts the trainable parameters from the part to the device layout.
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
