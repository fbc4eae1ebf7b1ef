#include "nvme/store/nvme_store.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/errors.h"

namespace longshore {

namespace {

Bytes slot_bytes(const UnitParts& parts) {
  Bytes sum = 0;
  for (const PartRole role : kPartRoles) sum += parts.part_bytes(role);
  return sum;
}

// A slot holds the parameters as read and, if that differs, the device layout after them.
Bytes parameter_slot_bytes(const UnitParts& parts) {
  const Bytes raw = parts.part_bytes(PartRole::kParameters) + parts.part_bytes(PartRole::kFrozen);
  return raw + (parts.direct() ? 0 : align_up(parts.parameter_bytes(), kBlockBytes));
}

}  // namespace

NvmeStore::NvmeStore(const std::vector<FlatLayout>& layouts, const NvmeStoreOptions& options,
                     const MakeDrives& make_drives, WorkerPool* pool)
    : options_(options),
      pool_(pool),
      map_(make_map(layouts, options)),
      arena_(planned_bytes(layouts, options), options.register_with_gpus, *pool),
      state_owners_("slot of state", options.state_slots),
      parameter_owners_("slot of parameters",
                        options.parameters_on_drives ? options.parameter_slots : 0) {
  LONGSHORE_CHECK(options.state_slots >= 1 && options.parameter_slots >= 1);
  carve(layouts);
  drives_ = make_drives(map_, window_);
  chunks_ = std::make_unique<VersionedChunks>(borrow(drives_), &map_, options.run, options.rank,
                                              options.ranks, parallel_on(pool));
}

NvmeStore::~NvmeStore() {
  // The drives go first, so that they finish all started transfers before the memory is freed.
  chunks_.reset();
  drives_.clear();
}

std::string NvmeStore::lost_file() const {
  const auto lost =
      std::ranges::find_if(drives_, [](const auto& drive) { return !drive->is_named(); });
  return lost == drives_.end() ? "" : (*lost)->path();
}

NvmeStore::Sizes NvmeStore::sizes_of(const std::vector<FlatLayout>& layouts,
                                     const NvmeStoreOptions& options) {
  Sizes sizes;
  for (const FlatLayout& layout : layouts) {
    const UnitParts parts(layout, options.state);
    sizes.state_slot = std::max(sizes.state_slot, slot_bytes(parts));
    if (options.parameters_on_drives) {
      sizes.parameter_slot = std::max(sizes.parameter_slot, parameter_slot_bytes(parts));
    } else {
      sizes.parameters += align_up(parts.parameter_bytes(), kBlockBytes);
    }
  }
  // Recovery reads everything through the window, at least two chunks at a time.
  sizes.window = std::max(
      options.state_slots * sizes.state_slot + options.parameter_slots * sizes.parameter_slot,
      2 * options.geometry.chunk_bytes);
  return sizes;
}

Bytes NvmeStore::planned_bytes(const std::vector<FlatLayout>& layouts,
                               const NvmeStoreOptions& options) {
  return sizes_of(layouts, options).total();
}

StripeMap NvmeStore::make_map(const std::vector<FlatLayout>& layouts,
                              const NvmeStoreOptions& options) {
  return {part_specs(layouts, options.state), options.geometry, options.drives, options.versions};
}

void NvmeStore::carve(const std::vector<FlatLayout>& layouts) {
  const Sizes sizes = sizes_of(layouts, options_);
  std::span<std::byte> rest = arena_.bytes();
  const auto take = [&rest](Bytes bytes) {
    const auto taken = rest.first(static_cast<size_t>(bytes));
    rest = rest.subspan(static_cast<size_t>(bytes));
    return taken;
  };
  int next_part = 0;
  for (const FlatLayout& layout : layouts) {
    Unit& unit = units_.emplace_back(Unit{UnitParts(layout, options_.state)});
    for (const PartRole role : kStoredRoles) {
      if (unit.parts.part_bytes(role) > 0) unit.part_ids[index_of(role)] = next_part++;
    }
    if (options_.parameters_on_drives) continue;
    unit.parameters = take(align_up(unit.parts.parameter_bytes(), kBlockBytes));
  }
  window_ = rest;
  LONGSHORE_CHECK(static_cast<Bytes>(window_.size()) == sizes.window);
  for (int i = 0; i < options_.state_slots; ++i) {
    state_slots_.emplace_back().memory = take(sizes.state_slot);
  }
  for (int i = 0; i < options_.parameter_slots && options_.parameters_on_drives; ++i) {
    parameter_slots_.emplace_back().memory = take(sizes.parameter_slot);
  }
}

NvmeStore::UnitTraffic NvmeStore::traffic_of(const FlatLayout& layout,
                                             const NvmeStoreOptions& options) {
  const UnitParts parts(layout, options.state);
  UnitTraffic traffic;
  for (const PartRole role : kStoredRoles) {
    const Bytes bytes = parts.part_bytes(role);
    const bool in_memory =
        !options.parameters_on_drives &&
        (role == PartRole::kFrozen || (role == PartRole::kParameters && parts.direct()));
    if (!in_memory) traffic.state_read += bytes;
    if (role != PartRole::kFrozen) traffic.state_written += bytes;
    if (role != PartRole::kRest && options.parameters_on_drives) traffic.parameters_read += bytes;
  }
  return traffic;
}

Bytes NvmeStore::commit_bytes(const std::vector<FlatLayout>& layouts,
                              const NvmeStoreOptions& options) {
  if (options.versions == 1) return 0;
  const StripeMap map = make_map(layouts, options);
  Bytes bytes = 0;
  for (int drive = 0; drive < map.drives(); ++drive) bytes += map.table_bytes(drive) + kBlockBytes;
  return bytes;
}

// ---- Locations in memory ----

// The update works directly on the parameter in host memory if that has the state's own form.
bool NvmeStore::in_host_memory(const Unit& unit, PartRole role) const {
  return role == PartRole::kParameters && !options_.parameters_on_drives && unit.parts.direct();
}

std::span<std::byte> NvmeStore::part_memory(const Unit& unit, StateMemory& slot,
                                            PartRole role) const {
  const auto bytes = static_cast<size_t>(unit.parts.part_bytes(role));
  if (in_host_memory(unit, role)) return unit.parameters.first(bytes);
  Bytes begin = 0;
  for (const PartRole before : kPartRoles) {
    if (before == role) break;
    begin += unit.parts.part_bytes(before);
  }
  return slot.memory.subspan(static_cast<size_t>(begin), bytes);
}

std::span<std::byte> NvmeStore::region(const Unit& unit, StateMemory& slot, Region region,
                                       Segment segment) {
  const RegionExtent place = unit.parts.place(region, segment);
  const bool host = !options_.parameters_on_drives;
  if (place.role == PartRole::kFrozen && host) {
    // The frozen segment is the end of the parameter.
    const auto begin = static_cast<size_t>(unit.parts.trainable_parameter_bytes());
    return unit.parameters.subspan(begin + static_cast<size_t>(place.offset),
                                   static_cast<size_t>(place.bytes));
  }
  if (place.role == PartRole::kDerived && host) {
    return unit.parameters.subspan(static_cast<size_t>(place.offset),
                                   static_cast<size_t>(place.bytes));
  }
  return part_memory(unit, slot, place.role)
      .subspan(static_cast<size_t>(place.offset), static_cast<size_t>(place.bytes));
}

// ---- Start and commit ----

std::optional<DurablePoint> NvmeStore::start(Agreement& agreement, uint64_t random) {
  Recovery recovery = chunks_->make_recovery(window_, random);
  recover(recovery, agreement);
  chunks_->begin(recovery);
  if (has_point() && !options_.parameters_on_drives) {
    for (size_t u = 0; u < units_.size(); ++u) {
      read_host_parameters(UnitId(static_cast<int32_t>(u)));
    }
  }
  if (!has_point()) std::memset(window_.data(), 0, window_.size());
  return committed();
}

std::optional<DurablePoint> NvmeStore::committed() const {
  if (!has_point()) return std::nullopt;
  return chunks_->committed()->durable();
}

void NvmeStore::rethrow_failure() {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void NvmeStore::commit(const DurableStep& record, Agreement& agreement) {
  bool any = false;
  {
    const MutexLock lock(mutex_);
    rethrow_failure();
    for (const Unit& unit : units_) {
      LONGSHORE_CHECK(!unit.state_leased) << "a commit while a unit's state is leased";
      for (const int part : unit.part_ids) any = any || (part >= 0 && chunks_->is_written(part));
    }
  }
  // Units that the update left unchanged must also be part of the new version.
  for (size_t u = 0; u < units_.size() && any && has_point(); ++u) {
    write_again(UnitId(static_cast<int32_t>(u)));
  }
  if (map_.versions() == 1) return chunks_->check_writes();
  const int64_t vote = chunks_->prepare_commit(record);
  const int64_t least = agreement.reduce({vote, 0, 0, 0}).least[0];
  const MutexLock lock(mutex_);
  chunks_->conclude_commit(least);
}

// ---- Parameters: from host memory, or through their slots ----

class NvmeStore::HostParameters final : public ParameterLease {
 public:
  HostParameters(NvmeStore* store, UnitId unit) : store_(store), unit_(unit) {
    store_->begin_lease_of_parameters(unit_);
  }
  ~HostParameters() override { store_->end_lease_of_parameters(unit_); }
  std::span<const std::byte> bytes() const override {
    const Unit& unit = of_unit(store_->units_, unit_);
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
  Unit& unit = of_unit(units_, id);
  const MutexLock lock(mutex_);
  rethrow_failure();
  LONGSHORE_CHECK(!unit.state_leased) << "unit " << id << "'s state is leased";
  ++unit.parameter_leases;
}

void NvmeStore::end_lease_of_parameters(UnitId id) {
  const MutexLock lock(mutex_);
  --of_unit(units_, id).parameter_leases;
}

std::unique_ptr<ShardStore::ParameterLease> NvmeStore::parameters(UnitId id) {
  if (!options_.parameters_on_drives) return std::make_unique<HostParameters>(this, id);
  const ParameterSlot slot = claim_any(parameter_owners_, id, "parameters");
  try {
    fill_parameter_slot(of_unit(units_, id), parameter_slots_[slot]);
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
  Unit& unit = of_unit(units_, id);
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
  const Unit& unit = of_unit(units_, id);
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
    parts.convert(parameters, out, *pool_);
  } else if (parameters.data() != out.data() && trainable_bytes > 0) {
    std::memcpy(out.data(), parameters.data(), trainable_bytes);
  }
  const auto frozen_bytes = static_cast<size_t>(parts.used_bytes(PartRole::kFrozen));
  if (frozen_bytes > 0) std::memmove(out.data() + trainable_bytes, frozen.data(), frozen_bytes);
  slot.ready = out.first(static_cast<size_t>(parts.parameter_bytes()));
}

// ---- State: its leases, and its movement through the slots ----

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
  unit.parts.convert(part_memory(unit, slot, PartRole::kParameters),
                     part_memory(unit, slot, PartRole::kDerived), *pool_);
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
  unit.parts.convert(part_memory(unit, slot, PartRole::kParameters), unit.parameters, *pool_);
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
      unit.parts.convert(memory, unit.parameters, *pool_);
    }
  }
}

}  // namespace longshore
