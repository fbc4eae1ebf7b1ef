#include "nvme/store/nvme_inputs.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

Bytes part_bytes(const NvmeInputOptions& options, size_t unit) {
  const Bytes bytes = options.unit_bytes.at(unit);
  LONGSHORE_CHECK(bytes % options.micro_batches == 0)
      << bytes << " in " << options.micro_batches << " parts";
  return align_up(bytes / options.micro_batches, kBlockBytes);
}

// The units whose inputs are written, in order: all that are saved but the last ones.
std::vector<size_t> written_units(const NvmeInputOptions& options) {
  std::vector<size_t> saved;
  for (size_t u = 0; u < options.unit_bytes.size(); ++u) {
    if (options.unit_bytes[u] > 0) saved.push_back(u);
  }
  saved.resize(saved.size() - std::min(saved.size(), NvmeInputs::kStagingSlots));
  return saved;
}

Bytes slot_bytes(const NvmeInputOptions& options) {
  Bytes largest = 0;
  for (size_t u = 0; u < options.unit_bytes.size(); ++u) {
    largest = std::max(largest, part_bytes(options, u));
  }
  return largest * options.micro_batches;
}

}  // namespace

Bytes NvmeInputs::planned_bytes(const NvmeInputOptions& options) {
  return static_cast<Bytes>(kStagingSlots) * slot_bytes(options);
}

StripeMap NvmeInputs::make_map(const NvmeInputOptions& options) {
  std::vector<PartSpec> parts;
  for (const size_t unit : written_units(options)) {
    for (int64_t i = 0; i < options.micro_batches; ++i) {
      parts.push_back(
          {.name = "unit " + std::to_string(unit) + "'s input of micro-batch " + std::to_string(i),
           .bytes = part_bytes(options, unit),
           .versioned = false});
    }
  }
  return {parts, options.geometry, options.drives};
}

DriveTraffic NvmeInputs::planned_traffic(const NvmeInputOptions& options) {
  Bytes bytes = 0;
  for (const size_t unit : written_units(options)) {
    bytes += part_bytes(options, unit) * options.micro_batches;
  }
  return {.read = bytes, .written = bytes};
}

NvmeInputs::NvmeInputs(const NvmeInputOptions& options, const MakeDrives& make_drives,
                       WorkerPool* pool)
    : options_(options),
      map_(make_map(options)),
      first_parts_(options.unit_bytes.size(), -1),
      arena_(planned_bytes(options), options.register_with_gpus, *pool),
      drives_(make_drives(map_, arena_.bytes())),
      hashes_(map_.chunks().size()) {
  mover_ = std::make_unique<PartMover>(borrow(drives_), &map_, options.rank, parallel_on(pool),
                                       "Start again: the run goes on from its last durable state");
  int next_part = 0;
  for (const size_t unit : written_units(options)) {
    first_parts_[unit] = next_part;
    next_part += static_cast<int>(options.micro_batches);
  }
  const auto bytes = static_cast<size_t>(slot_bytes(options));
  for (size_t i = 0; i < kStagingSlots; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.memory = arena_.bytes().subspan(i * bytes, bytes);
    slot.ios.resize(static_cast<size_t>(options.micro_batches));
  }
}

NvmeInputs::~NvmeInputs() {
  // The drives finish what was started before the memory goes.
  drives_.clear();
}

std::vector<std::span<std::byte>> NvmeInputs::parts(const Slot& slot, int32_t micro_batches) const {
  LONGSHORE_CHECK(micro_batches <= options_.micro_batches) << micro_batches;
  const auto bytes = static_cast<size_t>(part_bytes(options_, static_cast<size_t>(slot.unit)));
  std::vector<std::span<std::byte>> result;
  for (int32_t i = 0; i < micro_batches; ++i) {
    result.push_back(slot.memory.subspan(static_cast<size_t>(i) * bytes, bytes));
  }
  return result;
}

std::vector<std::span<std::byte>> NvmeInputs::places(const Slot& slot,
                                                     int32_t micro_batches) const {
  std::vector<std::span<std::byte>> result = parts(slot, micro_batches);
  const Bytes bytes = options_.unit_bytes[static_cast<size_t>(slot.unit)] / options_.micro_batches;
  for (std::span<std::byte>& place : result) place = place.first(static_cast<size_t>(bytes));
  return result;
}

NvmeInputs::Slot* NvmeInputs::find(int32_t unit) {
  const auto slot = std::ranges::find_if(slots_, [unit](const Slot& candidate) {
    return candidate.use != Slot::Use::kFree && candidate.unit == unit;
  });
  return slot == slots_.end() ? nullptr : &*slot;
}

// One that needs no waiting, or none.
NvmeInputs::Slot* NvmeInputs::idle_slot() {
  for (Slot& slot : slots_) {
    if (slot.use == Slot::Use::kFree) return &slot;
  }
  return nullptr;
}

NvmeInputs::Slot& NvmeInputs::take_slot() {
  if (Slot* idle = idle_slot()) return *idle;
  // Units are written in order: the lowest is the one that was begun first.
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.use != Slot::Use::kWriting) continue;
    if (oldest == nullptr || slot.unit < oldest->unit) oldest = &slot;
  }
  LONGSHORE_CHECK(oldest != nullptr) << "inputs are saved out of order";
  finish_writing(*oldest);
  return *oldest;
}

// ---- Saving ----

void NvmeInputs::save(UnitId unit, int32_t micro_batches, const Copy& fill) {
  const std::lock_guard lock(mutex_);
  LONGSHORE_CHECK(find(unit.value) == nullptr)
      << "the input of unit " << unit << " was saved and not loaded";
  Slot& slot = take_slot();
  slot.unit = unit.value;
  fill(places(slot, micro_batches));
  slot.use = Slot::Use::kHeld;
  if (first_parts_.at(static_cast<size_t>(unit.value)) >= 0) start_writing(slot, micro_batches);
}

void NvmeInputs::start_writing(Slot& slot, int32_t micro_batches) {
  SealedPart sealed;
  const int first = first_parts_[static_cast<size_t>(slot.unit)];
  const auto memory = parts(slot, micro_batches);
  slot.use = Slot::Use::kWriting;
  for (int32_t i = 0; i < micro_batches; ++i) {
    const auto index = static_cast<size_t>(i);
    mover_->seal(first + i, memory[index], sealed);
    std::ranges::copy(sealed.hashes, hashes_.begin() + map_.first_chunk(first + i));
    mover_->start(BlockOp::Kind::kWrite, first + i, 0, memory[index], slot.ios[index]);
    traffic_.written += static_cast<Bytes>(memory[index].size());
  }
}

void NvmeInputs::finish_writing(Slot& slot) {
  std::string failure;
  for (PartIo& io : slot.ios) {
    if (!io.active) continue;
    const std::string failed = mover_->finish_write(io);
    if (failure.empty()) failure = failed;
  }
  slot.use = Slot::Use::kFree;
  if (!failure.empty()) {
    throw IoError("the input of unit " + std::to_string(slot.unit) +
                  " could not be written: " + failure);
  }
}

// ---- Loading ----

void NvmeInputs::load(UnitId unit, int32_t micro_batches, const Copy& take) {
  const std::lock_guard lock(mutex_);
  Slot* slot = find(unit.value);
  if (slot == nullptr) {
    LONGSHORE_CHECK(first_parts_.at(static_cast<size_t>(unit.value)) >= 0)
        << "the input of unit " << unit << " was not saved";
    slot = &take_slot();
    start_reading(*slot, unit.value, micro_batches);
  }
  if (slot->use == Slot::Use::kReading) finish_reading(*slot);
  if (slot->use == Slot::Use::kWriting) finish_writing(*slot);
  take(places(*slot, micro_batches));
  slot->use = Slot::Use::kFree;
  read_ahead(unit.value, micro_batches);
}

void NvmeInputs::start_reading(Slot& slot, int32_t unit, int32_t micro_batches) {
  slot.unit = unit;
  slot.use = Slot::Use::kReading;
  const int first = first_parts_[static_cast<size_t>(unit)];
  const auto memory = parts(slot, micro_batches);
  for (int32_t i = 0; i < micro_batches; ++i) {
    const auto index = static_cast<size_t>(i);
    mover_->start(BlockOp::Kind::kRead, first + i, 0, memory[index], slot.ios[index]);
    traffic_.read += static_cast<Bytes>(memory[index].size());
  }
}

void NvmeInputs::finish_reading(Slot& slot) {
  for (PartIo& io : slot.ios) {
    if (!io.active) continue;
    mover_->finish_read(io, [this](int64_t chunk, std::span<const std::byte> bytes) {
      return hash64(bytes) == hashes_[static_cast<size_t>(chunk)];
    });
  }
}

// Into the slots that are free, what backward wants next.
void NvmeInputs::read_ahead(int32_t below, int32_t micro_batches) {
  for (int32_t unit = below - 1; unit >= 0; --unit) {
    if (first_parts_[static_cast<size_t>(unit)] < 0 || find(unit) != nullptr) continue;
    Slot* const slot = idle_slot();
    if (slot == nullptr) return;
    start_reading(*slot, unit, micro_batches);
  }
}

DriveTraffic NvmeInputs::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

}  // namespace longshore
