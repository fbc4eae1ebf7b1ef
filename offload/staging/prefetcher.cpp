#include "offload/staging/prefetcher.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/mutex.h"

namespace longshore {

UnitLease::UnitLease(UnitLease&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)),
      slot_(other.slot_),
      unit_(other.unit_),
      bytes_(other.bytes_) {}

UnitLease::~UnitLease() {
  if (ring_ != nullptr) ring_->release(slot_);
}

StageRing::StageRing(std::vector<std::span<std::byte>> slots) {
  LONGSHORE_CHECK(!slots.empty()) << "a ring needs a slot";
  for (std::span<std::byte> memory : slots) slots_.emplace_back().memory = memory;
}

std::span<std::byte> StageRing::begin_fill(const Placed& placed, StateVersion version,
                                           Bytes unit_bytes) {
  const MutexLock lock(*mutex_);
  Slot& slot = slots_[placed.slot];
  LONGSHORE_CHECK(slot.leases == 0) << "slot " << placed.slot << " is leased for unit " << slot.unit
                                    << "; unit " << placed.unit << " may not take it";
  LONGSHORE_CHECK(slot.content != Content::kFilling)
      << "slot " << placed.slot << " is being filled with unit " << slot.unit << "; unit "
      << placed.unit << " may not take it";
  LONGSHORE_CHECK(unit_bytes <= static_cast<Bytes>(slot.memory.size()))
      << "unit " << placed.unit << " has " << unit_bytes << " bytes, slot " << placed.slot << " "
      << slot.memory.size();
  slot.content = Content::kFilling;
  slot.unit = placed.unit;
  slot.version = version;
  slot.unit_bytes = unit_bytes;
  return slot.memory.first(static_cast<size_t>(unit_bytes));
}

StageRing::Slot& StageRing::held(const Placed& placed, StateVersion version, Content content) {
  Slot& slot = slots_[placed.slot];
  const bool holds = slot.content == content && slot.unit == placed.unit && slot.version == version;
  LONGSHORE_CHECK(holds) << "slot " << placed.slot << " does not hold "
                         << (content == Content::kFilling ? "the beginnings of " : "") << "unit "
                         << placed.unit << " version " << version;
  return slot;
}

std::span<std::byte> StageRing::filling(const Placed& placed, StateVersion version) {
  const MutexLock lock(*mutex_);
  const Slot& slot = held(placed, version, Content::kFilling);
  return slot.memory.first(static_cast<size_t>(slot.unit_bytes));
}

void StageRing::end_fill(const Placed& placed, StateVersion version) {
  const MutexLock lock(*mutex_);
  held(placed, version, Content::kFilling).content = Content::kComplete;
}

UnitLease StageRing::lease(const Placed& placed, StateVersion version) {
  const MutexLock lock(*mutex_);
  Slot& slot = held(placed, version, Content::kComplete);
  ++slot.leases;
  return UnitLease(this, placed.slot, placed.unit,
                   slot.memory.first(static_cast<size_t>(slot.unit_bytes)));
}

void StageRing::release(DeviceSlot slot) {
  const MutexLock lock(*mutex_);
  --slots_[slot].leases;
}

namespace {

static_assert(std::atomic<int64_t>::is_always_lock_free, "boards are shared between processes");

// The message of one member to the others.
struct Address {
  int64_t process = 0;
  int64_t arena = 0;  // file descriptors
  int64_t board = 0;
};

// A version is usually published already, or follows within a copy's time.
constexpr int kSpins = 200;
constexpr std::chrono::microseconds kLook(50);
constexpr int kLooksBetweenChecks = 400;

}  // namespace

NodeShards::Board NodeShards::board_of(const HostMapping& mapping) {
  return {reinterpret_cast<std::atomic<int64_t>*>(mapping.bytes().data()),
          mapping.bytes().size() / sizeof(std::atomic<int64_t>)};
}

NodeShards::NodeShards(const SharedShards* shards, size_t units, Communicator* group,
                       std::function<void()> check_ranks, bool register_with_gpus)
    : shards_(shards), check_ranks_(std::move(check_ranks)) {
  const auto board_bytes = static_cast<Bytes>(units * sizeof(std::atomic<int64_t>));
  own_board_ = HostMapping::shared(board_bytes, "board of versions");
  std::ranges::fill(board_of(own_board_), int64_t{-1});
  const auto members = static_cast<size_t>(group->size());
  const auto own = static_cast<size_t>(group->index());
  std::vector<Address> addresses(members);
  addresses[own] = {getpid(), shards->mapping().descriptor(), own_board_.descriptor()};
  group->all_gather({std::as_writable_bytes(std::span(addresses))}, {"shared memory", {}}).wait();
  // This process never writes there; GPUs that register only writable memory need it writable.
  const bool writable = register_with_gpus && !gpus_register_read_only();
  peer_arenas_.resize(members);
  peer_boards_.resize(members);
  for (size_t i = 0; i < members; ++i) {
    if (i == own) {
      arenas_.push_back(shards->mapping().bytes());
      boards_.push_back(board_of(own_board_));
      continue;
    }
    const auto process = static_cast<int>(addresses[i].process);
    peer_arenas_[i] = HostMapping::of_process(process, static_cast<int>(addresses[i].arena),
                                              shards->mapping().size_bytes(),
                                              "another rank's host tier", writable);
    if (register_with_gpus) registered_.emplace_back(peer_arenas_[i].bytes(), /*read_only=*/true);
    peer_boards_[i] = HostMapping::of_process(process, static_cast<int>(addresses[i].board),
                                              board_bytes, "another rank's board of versions");
    arenas_.push_back(peer_arenas_[i].bytes());
    boards_.push_back(board_of(peer_boards_[i]));
  }
  // After the barrier descriptors may be closed.
  group->barrier({"shared memory", {}}).wait();
}

void NodeShards::publish(UnitId unit, StateVersion version) {
  board_of(own_board_)[static_cast<size_t>(unit.value)].store(version.value,
                                                              std::memory_order_release);
}

void NodeShards::wait_for(UnitId unit, StateVersion version) const {
  for (const Board& board : boards_) {
    const std::atomic<int64_t>& held = board[static_cast<size_t>(unit.value)];
    for (int looks = 0; held.load(std::memory_order_acquire) < version.value; ++looks) {
      if (looks > kSpins) std::this_thread::sleep_for(kLook);
      if (check_ranks_ && looks % kLooksBetweenChecks == kLooksBetweenChecks - 1) check_ranks_();
    }
    LONGSHORE_CHECK(held.load(std::memory_order_acquire) == version.value)
        << "unit " << unit << " is ahead of version " << version;
  }
}

std::span<const std::byte> NodeShards::shard(int32_t member, UnitId unit) const {
  return shards_->mapped_parameters(arenas_.at(static_cast<size_t>(member)), unit);
}

void Prefetcher::fetch(const Placed& placed, std::optional<ParameterSlot> parameters) {
  const FlatLayout& flat = layout(placed.unit);
  const std::span<std::byte> slot = parts_.ring->begin_fill(placed, version_, flat.flat_bytes());
  if (parts_.node != nullptr) {
    parts_.node->wait_for(placed.unit, version_);
    for (int32_t member = 0; member < parts_.node->members(); ++member) {
      copy_shard(flat, Rank(member), parts_.node->shard(member, placed.unit), slot);
    }
    parts_.copies->finish();
  } else {
    const auto lease = parameters ? parts_.slots->parameters_in(placed.unit, *parameters)
                                  : parts_.store->parameters(placed.unit);
    copy_shard(flat, parts_.shard, lease->bytes(), slot);
    parts_.copies->finish();
  }
  if (!gathers()) parts_.ring->end_fill(placed, version_);
}

void Prefetcher::copy_shard(const FlatLayout& flat, Rank shard, std::span<const std::byte> source,
                            std::span<std::byte> slot) {
  for (Segment segment : kSegments) {
    const ByteRange own = flat.shard_place(segment, shard);
    const auto bytes = static_cast<size_t>(own.bytes);
    if (bytes == 0) continue;
    parts_.copies->to_device(slot.subspan(static_cast<size_t>(own.begin), bytes),
                             source.first(bytes));
    source = source.subspan(bytes);
  }
}

void Prefetcher::gather(const Placed& placed) {
  const FlatLayout& flat = layout(placed.unit);
  const std::span<std::byte> slot = parts_.ring->filling(placed, version_);
  Communicator::Segments segments;
  for (Segment segment : kSegments) {
    const ByteRange whole = flat.segment_bytes(segment);
    if (whole.bytes == 0) continue;
    segments.push_back(
        slot.subspan(static_cast<size_t>(whole.begin), static_cast<size_t>(whole.bytes)));
  }
  parts_.shards->all_gather(std::move(segments), {"parameters", placed.unit}).wait();
  parts_.ring->end_fill(placed, version_);
}

}  // namespace longshore
