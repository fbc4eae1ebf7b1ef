#include "nvme/store/nvme_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "nvme/drive/block_file.h"

namespace longshore {

UnitParts::UnitParts(const FlatLayout& layout, const StateOptions& options)
    : places_(region_count(options)) {
  has_master_ = region_bytes(options, Segment::kFullMoments, Region::kMaster, kBlockElements) > 0;
  joins_ = !has_master_ && options.compute == DType::kF32;
  direct_ = has_master_ ? options.compute == DType::kF32 : !joins_;
  const Bytes width = width_of(options.compute);
  const int64_t trainable = layout.shard_elements(Segment::kQuantisedMoments) +
                            layout.shard_elements(Segment::kFullMoments);
  trainable_parameter_bytes_ = trainable * width;
  parameter_bytes_ = trainable_parameter_bytes_ + layout.shard_elements(Segment::kFrozen) * width;
  const SlabLayout slab(layout, options);
  for (const Region region : regions_of(options)) {
    for (const Segment segment : kSegments) {
      RegionExtent& place = places_[region.place()][static_cast<size_t>(segment)];
      place.bytes = slab.bytes(region, segment);
      place.role = role_of(region, segment);
      Bytes& end = used_[static_cast<size_t>(place.role)];
      place.offset = end;
      end += place.bytes;
    }
  }
}

PartRole UnitParts::role_of(Region region, Segment segment) const {
  if (segment == Segment::kFrozen) return PartRole::kFrozen;
  if (region == Region::kMaster) return PartRole::kParameters;
  if (region == Region::kHigh) return has_master_ ? PartRole::kDerived : PartRole::kParameters;
  if (region == Region::kLow && joins_) return PartRole::kParameters;
  return PartRole::kRest;
}

Bytes UnitParts::part_bytes(PartRole role) const {
  return align_up(used_bytes(role), kBlockBytes);
}

namespace {

constexpr Bytes kPeekChunkBytes = 16 * kBlockBytes;

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

std::vector<PartSpec> part_specs(const std::vector<FlatLayout>& layouts,
                                 const StateOptions& options) {
  constexpr std::array<const char*, 3> kNames = {"parameters", "moments", "frozen parameters"};
  // Two formats may have parts of equal sizes, so the layout includes the meaning of the bytes.
  std::string meaning = std::string(", ") + std::string(name_of(options.format)) +
                        (options.compute == DType::kF32 ? " for fp32" : " for bf16");
  if (has_scales(moments_of_matrices(options.format))) {
    meaning += ", codes " + std::to_string(kMomentCodeVersion);
  }
  if (!std::ranges::equal(options.regions, kDefaultRegions)) {
    for (const StateRegion& region : options.regions) meaning += ", " + std::string(region.name);
  }
  std::vector<PartSpec> specs;
  for (size_t u = 0; u < layouts.size(); ++u) {
    const UnitParts parts(layouts[u], options);
    for (const PartRole role : kStoredRoles) {
      if (parts.part_bytes(role) == 0) continue;
      specs.push_back({"unit " + std::to_string(u) + "'s " + kNames[index_of(role)] + meaning,
                       parts.part_bytes(role), role != PartRole::kFrozen});
    }
  }
  return specs;
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

// The parameters of NvmeStore: from host memory, or through their slots.

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

// ---- State files ----

std::string state_file_path(const std::string& directory, int32_t rank, StateFile file) {
  const std::string name =
      formatted("rank-%04d.%s", rank, file == StateFile::kState ? "state" : "inputs");
  return directory + "/" + name;
}

StateFileContent read_state_file(const std::string& directory, int32_t rank) {
  StateFileContent content;
  const std::string path = state_file_path(directory, rank);
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return content;
    throw IoError("stat", path, errno);
  }
  DriveOptions options;
  options.file.path = path;
  options.chunk_bytes = kPeekChunkBytes;
  options.depth = 1;
  options.engine = IoEngine::kThreads;
  OpenDrive drive(options);
  content.bytes = drive.size_bytes();
  // A run creates its file in full size, so a shorter file is not one that a run left.
  content.unknown = content.bytes > 0 && content.bytes < kManifestAreaBytes;
  const BlockBuffer block(kBlockBytes);
  for (int copy = 0; copy < kManifestCopies && content.bytes >= kManifestAreaBytes; ++copy) {
    drive.read(copy * kManifestStride, block.bytes());
    const std::optional<Manifest> manifest = decode(block.bytes());
    const bool newer = manifest && (!content.manifest ||
                                    manifest->point.sequence > content.manifest->point.sequence);
    if (newer) content.manifest = manifest;
    if (manifest || is_empty(block.bytes())) continue;
    content.unknown = true;
    if (!content.claimed) content.claimed = claimed_run(block.bytes());
  }
  // One valid copy is enough.
  if (content.manifest) content.unknown = false;
  return content;
}

std::vector<std::unique_ptr<Drive>> open_state_files(const StateFileOptions& options,
                                                     const StripeMap& map,
                                                     std::span<std::byte> window) {
  LONGSHORE_CHECK(static_cast<int>(options.directories.size()) == map.drives());
  std::vector<std::unique_ptr<Drive>> drives;
  for (int i = 0; i < map.drives(); ++i) {
    const std::string& directory = options.directories[static_cast<size_t>(i)];
    make_directories(directory);
    DriveOptions drive;
    drive.file.path = state_file_path(directory, options.rank, options.file);
    drive.file.size_bytes = map.file_bytes(i);
    drive.chunk_bytes = map.geometry().chunk_bytes;
    drive.depth = options.depth;
    drive.engine = options.engine;
    drive.memory = {window};
    drives.push_back(std::make_unique<OpenDrive>(drive));
    if (options.file == StateFile::kInputs) unlink(drive.file.path.c_str());
    sync_directory(directory);
  }
  return drives;
}

}  // namespace longshore
