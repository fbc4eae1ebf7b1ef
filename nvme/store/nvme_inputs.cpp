#include "nvme/store/nvme_inputs.h"

#include <algorithm>
#include <exception>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

Bytes slot_bytes(const NvmeInputOptions& options) {
  Bytes largest = 0;
  for (const NvmeInputOptions::Input& input : options.saved) {
    largest = std::max(largest, NvmeInputs::staged_bytes(input.bytes, options.micro_batches));
  }
  return largest;
}

}  // namespace

Bytes NvmeInputs::staged_bytes(Bytes bytes, int64_t micro_batches) {
  LONGSHORE_CHECK(bytes % micro_batches == 0) << bytes << " in " << micro_batches << " parts";
  return align_up(bytes / micro_batches, kBlockBytes) * micro_batches;
}

Bytes NvmeInputs::planned_bytes(const NvmeInputOptions& options) {
  return static_cast<Bytes>(kInputStagingSlots) * slot_bytes(options);
}

StripeMap NvmeInputs::make_map(const NvmeInputOptions& options) {
  std::vector<PartSpec> parts;
  for (const UnitId unit : options.written) {
    const auto input = std::ranges::find(options.saved, unit, &NvmeInputOptions::Input::unit);
    LONGSHORE_CHECK(input != options.saved.end()) << "unit " << unit;
    for (int64_t i = 0; i < options.micro_batches; ++i) {
      parts.push_back(
          {.name = "unit " + std::to_string(unit.value) + "'s input of micro-batch " +
                   std::to_string(i),
           .bytes = staged_bytes(input->bytes, options.micro_batches) / options.micro_batches,
           .versioned = false});
    }
  }
  return {parts, options.geometry, options.drives};
}

NvmeInputs::NvmeInputs(const NvmeInputOptions& options, const MakeDrives& make_drives,
                       WorkerPool* pool)
    : options_(options),
      map_(make_map(options)),
      arena_(planned_bytes(options), options.register_with_gpus, *pool),
      drives_(make_drives(map_, arena_.bytes())),
      hashes_(map_.chunks().size()) {
  mover_ = std::make_unique<PartMover>(borrow(drives_), &map_, options.rank, parallel_on(pool),
                                       "Start again: the run resumes from its last durable state");
  for (const NvmeInputOptions::Input& input : options.saved) {
    const auto index = static_cast<size_t>(input.unit.value);
    units_.resize(std::max(units_.size(), index + 1));
    units_[index].bytes = input.bytes / options.micro_batches;
  }
  int next_part = 0;
  for (const UnitId unit : options.written) {
    units_.at(static_cast<size_t>(unit.value)).first_part = next_part;
    next_part += static_cast<int>(options.micro_batches);
  }
  const auto bytes = static_cast<size_t>(slot_bytes(options));
  for (size_t i = 0; i < kInputStagingSlots; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.memory = arena_.bytes().subspan(i * bytes, bytes);
    slot.ios.resize(static_cast<size_t>(options.micro_batches));
  }
}

NvmeInputs::~NvmeInputs() {
  // The drives finish all started transfers before the memory is freed.
  drives_.clear();
}

const NvmeInputs::Unit& NvmeInputs::at(UnitId unit) const {
  const auto index = static_cast<size_t>(unit.value);
  LONGSHORE_CHECK(index < units_.size() && units_[index].bytes > 0)
      << "the input of unit " << unit << " is not saved";
  return units_[index];
}

std::span<std::byte> NvmeInputs::part(const Unit& unit, const Slot& slot,
                                      int32_t micro_batch) const {
  LONGSHORE_CHECK(micro_batch < options_.micro_batches) << micro_batch;
  const auto bytes = static_cast<size_t>(align_up(unit.bytes, kBlockBytes));
  return slot.memory.subspan(static_cast<size_t>(micro_batch) * bytes, bytes);
}

std::vector<std::span<std::byte>> NvmeInputs::places(UnitId id,
                                                     std::optional<StagingSlot> number) const {
  LONGSHORE_CHECK(number.has_value()) << "the input of unit " << id << " lies in a slot";
  const Unit& unit = at(id);
  const Slot& slot = slots_[*number];
  std::vector<std::span<std::byte>> places;
  for (int32_t i = 0; i < options_.micro_batches; ++i) {
    places.push_back(part(unit, slot, i).first(static_cast<size_t>(unit.bytes)));
  }
  return places;
}

void NvmeInputs::write(UnitId id, StagingSlot number, int32_t micro_batches) {
  const Unit& unit = at(id);
  LONGSHORE_CHECK(unit.first_part >= 0) << "the input of unit " << id << " is not written";
  Slot& slot = slots_[number];
  SealedPart sealed;
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<std::byte> memory = part(unit, slot, i);
    mover_->seal(unit.first_part + i, memory, sealed);
    std::ranges::copy(sealed.hashes, hashes_.begin() + map_.first_chunk(unit.first_part + i));
    mover_->start(BlockOp::Kind::kWrite, unit.first_part + i, 0, memory,
                  slot.ios[static_cast<size_t>(i)]);
    written_bytes_ += static_cast<Bytes>(memory.size());
  }
  std::string failure;
  for (PartIo& io : slot.ios) {
    if (!io.active) continue;
    const std::string failed = mover_->finish_write(io);
    if (failure.empty()) failure = failed;
  }
  if (failure.empty()) return;
  throw IoError("the input of unit " + std::to_string(id.value) +
                " could not be written: " + failure);
}

void NvmeInputs::read(UnitId id, StagingSlot number, int32_t micro_batches) {
  const Unit& unit = at(id);
  LONGSHORE_CHECK(unit.first_part >= 0) << "the input of unit " << id << " is not written";
  Slot& slot = slots_[number];
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<std::byte> memory = part(unit, slot, i);
    mover_->start(BlockOp::Kind::kRead, unit.first_part + i, 0, memory,
                  slot.ios[static_cast<size_t>(i)]);
    read_bytes_ += static_cast<Bytes>(memory.size());
  }
  const auto is_right = [this](int64_t chunk, std::span<const std::byte> bytes) {
    return hash64(bytes) == hashes_[static_cast<size_t>(chunk)];
  };
  std::exception_ptr failure;
  for (PartIo& io : slot.ios) {
    if (!io.active) continue;
    try {
      mover_->finish_read(io, is_right);
    } catch (...) {
      if (failure == nullptr) failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace longshore
