#include "tests/engine/file_tier.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/number_formats.h"
#include "pinned/pinned_arena.h"
#include "shard/slots.h"

namespace longshore {
namespace {

class PlainFile {
 public:
  PlainFile(const std::string& path, Bytes bytes)
      : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    LONGSHORE_CHECK(descriptor_ >= 0 && ftruncate(descriptor_, bytes) == 0) << path;
    unlink(path.c_str());
  }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  ~PlainFile() { close(descriptor_); }

  void read(Bytes offset, std::span<std::byte> bytes) const {
    const auto size = static_cast<ssize_t>(bytes.size());
    LONGSHORE_CHECK(pread(descriptor_, bytes.data(), bytes.size(), offset) == size) << offset;
  }
  void write(Bytes offset, std::span<const std::byte> bytes) const {
    const auto size = static_cast<ssize_t>(bytes.size());
    LONGSHORE_CHECK(pwrite(descriptor_, bytes.data(), bytes.size(), offset) == size) << offset;
  }

 private:
  int descriptor_;
};

// An AtEnd ends an access; if it fails, the test ends.
using AtEnd = std::function<void()>;

class FileState final : public ShardStore::StateLease {
 public:
  FileState(const StateOptions& options, const SlabLayout& layout, std::span<std::byte> slab,
            AtEnd at_end)
      : options_(options), layout_(layout), slab_(slab), at_end_(std::move(at_end)) {}
  ~FileState() override {
    if (at_end_) at_end_();
  }
  StateSpans segment(Segment segment) override {
    return state_spans(options_, segment, [&](Region region) {
      return slab_.subspan(static_cast<size_t>(layout_.offset(region, segment)),
                           static_cast<size_t>(layout_.bytes(region, segment)));
    });
  }

 private:
  const StateOptions& options_;
  const SlabLayout& layout_;
  std::span<std::byte> slab_;
  AtEnd at_end_;
};

class FileParameters final : public ShardStore::ParameterLease {
 public:
  FileParameters(std::span<const std::byte> bytes, AtEnd at_end)
      : bytes_(bytes), at_end_(std::move(at_end)) {}
  ~FileParameters() override { at_end_(); }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  AtEnd at_end_;
};

// Returns the number of slots that the plan's schedules use.
template <typename Slot>
int32_t slots_of(const TierPlan& plan) {
  int32_t count = 0;
  for (const StepSchedule* schedule :
       {&plan.step.schedules.train, &plan.step.schedules.forward, &plan.step.schedules.flush}) {
    for (const Op& op : schedule->ops) {
      if (const std::optional<Slot> slot = op.find<Slot>())
        count = std::max(count, slot->value + 1);
    }
  }
  return count;
}

class FileStore final : public ShardStore, public SlottedStore {
 public:
  FileStore(const TierRequest& request, const std::string& path)
      : options_(request.plan.state), arena_(request.plan.host.arena, false, *request.pool) {
    for (const FlatLayout& layout : request.layouts) {
      units_.push_back({SlabLayout(layout, options_), end_});
      end_ += units_.back().layout.slab_bytes();
      slab_ = std::max(slab_, units_.back().layout.slab_bytes());
    }
    file_ = std::make_unique<PlainFile>(path, end_);
    const int32_t states = slots_of<StateSlot>(request.plan);
    const int32_t parameters = slots_of<ParameterSlot>(request.plan);
    std::span<std::byte> rest = arena_.bytes();
    const auto take = [&rest, this] {
      const std::span<std::byte> slot = rest.first(static_cast<size_t>(slab_));
      rest = rest.subspan(slot.size());
      return slot;
    };
    for (int32_t i = 0; i < states; ++i) states_.push_back(take());
    for (int32_t i = 0; i < parameters; ++i) parameters_.push_back(take());
    state_holders_.emplace("state slot", states);
    parameter_holders_.emplace("parameter slot", parameters);
    ready_.resize(static_cast<size_t>(parameters));
  }

  const StateOptions& options() const override { return options_; }
  Bytes host_bytes() const override { return arena_.size_bytes(); }

  std::unique_ptr<ParameterLease> parameters(UnitId id) override {
    const ParameterSlot slot = parameter_holders_->claim_any(id).value();
    fill(id, read_slab(id), slot);
    return parameters_in(id, slot);
  }
  std::unique_ptr<StateLease> state(UnitId id) override {
    const StateSlot slot = state_holders_->claim_any(id).value();
    file_->read(at(id).begin, in_slot(slot, id));
    return std::make_unique<FileState>(options_, at(id).layout, in_slot(slot, id),
                                       [this, id, slot] { write_state(id, slot); });
  }

  void read_state(UnitId id, StateSlot slot) override {
    state_holders_->claim(slot, id);
    file_->read(at(id).begin, in_slot(slot, id));
  }
  std::unique_ptr<StateLease> state_in(UnitId id, StateSlot slot) override {
    state_holders_->check(slot, id);
    return std::make_unique<FileState>(options_, at(id).layout, in_slot(slot, id), AtEnd{});
  }
  void write_state(UnitId id, StateSlot slot) override {
    file_->write(at(id).begin, in_slot(slot, id));
    state_holders_->free(slot, id);
  }
  void read_parameters(UnitId id, ParameterSlot slot) override {
    parameter_holders_->claim(slot, id);
    fill(id, read_slab(id), slot);
  }
  void pass_parameters(UnitId id, StateSlot from, ParameterSlot to) override {
    state_holders_->check(from, id);
    parameter_holders_->claim(to, id);
    fill(id, in_slot(from, id), to);
  }
  std::unique_ptr<ParameterLease> parameters_in(UnitId id, ParameterSlot slot) override {
    parameter_holders_->check(slot, id);
    return std::make_unique<FileParameters>(
        ready_[slot], [this, id, slot] { parameter_holders_->free(slot, id); });
  }

 private:
  struct Unit {
    SlabLayout layout;
    Bytes begin;  // offset in the file
  };
  const Unit& at(UnitId id) const { return units_.at(static_cast<size_t>(id.value)); }
  std::span<std::byte> in_slot(StateSlot slot, UnitId id) const {
    return states_[slot].first(static_cast<size_t>(at(id).layout.slab_bytes()));
  }
  std::vector<std::byte> read_slab(UnitId id) const {
    std::vector<std::byte> slab(static_cast<size_t>(at(id).layout.slab_bytes()));
    file_->read(at(id).begin, slab);
    return slab;
  }
  // Fills a slot with the parameters in the device layout; masters in two halves are joined.
  void fill(UnitId id, std::span<const std::byte> slab, ParameterSlot slot) {
    const auto region = [&](Region region) {
      const SlabLayout& layout = at(id).layout;
      return slab.subspan(static_cast<size_t>(layout.offset(region, kSegments.front())),
                          static_cast<size_t>(layout.region_bytes(region)));
    };
    const std::span<std::byte> out = parameters_[slot];
    std::span<std::byte>& ready = ready_[slot];
    if (!needs_join(options_)) {
      const auto from = region(options_.compute == DType::kF32 ? Region::kMaster : Region::kHigh);
      ready = out.first(from.size());
      std::ranges::copy(from, ready.begin());
      return;
    }
    const std::span<const std::byte> high = region(Region::kHigh), low = region(Region::kLow);
    const std::span<const std::byte> frozen = region(Region::kMaster);
    ready = out.first(2 * high.size() + frozen.size());
    const std::span<float> joined = as_span<float>(ready.first(2 * high.size()));
    for (size_t i = 0; i < joined.size(); ++i) {
      uint16_t upper = 0, lower = 0;
      std::memcpy(&upper, &high[2 * i], 2);
      std::memcpy(&lower, &low[2 * i], 2);
      joined[i] = join_master(upper, lower);
    }
    std::ranges::copy(frozen, ready.subspan(2 * high.size()).begin());
  }

  StateOptions options_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  Bytes slab_ = 0, end_ = 0;
  std::unique_ptr<PlainFile> file_;
  SlotVector<StateSlot, std::span<std::byte>> states_;
  SlotVector<ParameterSlot, std::span<std::byte>> parameters_, ready_;
  std::optional<SlotOwners<StateSlot>> state_holders_;
  std::optional<SlotOwners<ParameterSlot>> parameter_holders_;
};

class FileInputs final : public InputTier {
 public:
  FileInputs(const TierRequest& request, const std::string& path)
      : micro_batches_(request.plan.step.micro_batches),
        arena_(request.plan.host.inputs, false, *request.pool) {
    Bytes end = 0;
    for (const Op& op : request.plan.step.schedules.train.ops) {
      if (op.kind != OpKind::kSaveInput) continue;
      const auto index = static_cast<size_t>(op.unit.value);
      units_.resize(std::max(units_.size(), index + 1));
      units_[index] = {op.bytes / micro_batches_, end};
      end += op.bytes;
    }
    file_ = std::make_unique<PlainFile>(path, end);
  }

  Bytes host_bytes() const override { return arena_.size_bytes(); }
  std::vector<std::span<std::byte>> places(UnitId id,
                                           std::optional<StagingSlot> slot) const override {
    const auto slots = static_cast<size_t>(kInputStagingSlots);
    const size_t slot_bytes = arena_.bytes().size() / slots;
    const auto bytes = static_cast<size_t>(at(id).bytes);
    std::vector<std::span<std::byte>> places;
    for (size_t i = 0; i < static_cast<size_t>(micro_batches_); ++i) {
      places.push_back(
          arena_.bytes()
              .subspan(static_cast<size_t>(slot.value().value) * slot_bytes, slot_bytes)
              .subspan(i * bytes, bytes));
    }
    return places;
  }
  void write(UnitId id, StagingSlot slot, int32_t micro_batches) override {
    const auto all = places(id, slot);
    for (int32_t i = 0; i < micro_batches; ++i) {
      file_->write(at(id).begin + i * at(id).bytes, all[static_cast<size_t>(i)]);
    }
  }
  void read(UnitId id, StagingSlot slot, int32_t micro_batches) override {
    const auto all = places(id, slot);
    for (int32_t i = 0; i < micro_batches; ++i) {
      file_->read(at(id).begin + i * at(id).bytes, all[static_cast<size_t>(i)]);
    }
  }

 private:
  struct Unit {
    Bytes bytes = 0;  // bytes of one micro-batch
    Bytes begin = 0;  // offset in the file
  };
  const Unit& at(UnitId id) const { return units_.at(static_cast<size_t>(id.value)); }

  int64_t micro_batches_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  std::unique_ptr<PlainFile> file_;
};

}  // namespace

MakeTiers file_tiers(const std::string& directory) {
  return [directory](const TierRequest& request) {
    LONGSHORE_CHECK(request.plan.drives.tier.state && request.plan.drives.tier.parameters);
    const std::string rank = "/rank" + std::to_string(request.rank.value);
    Tiers tiers;
    auto store = std::make_unique<FileStore>(request, directory + rank + ".state");
    tiers.slots = store.get();
    tiers.state = std::move(store);
    if (request.plan.drives.tier.inputs) {
      tiers.inputs = std::make_unique<FileInputs>(request, directory + rank + ".inputs");
    }
    return tiers;
  };
}

}  // namespace longshore
