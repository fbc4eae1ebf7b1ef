#include "tests/nvme/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace longshore {
namespace {

std::byte* at(std::vector<std::byte>& image, Bytes offset) {
  return image.data() + offset;
}

}  // namespace

uint64_t SimRandom::next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool SimRandom::chance(double probability) {
  return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
}

SimMedium::SimMedium(Bytes size_bytes)
    : SimMedium(std::vector<std::byte>(static_cast<size_t>(size_bytes))) {}

SimMedium::SimMedium(std::vector<std::byte> image)
    : now_(std::move(image)), before_(now_), durable_(now_) {
  LONGSHORE_CHECK(size_bytes() % kBlockBytes == 0);
}

void SimMedium::flip_bit(Bytes offset, int bit) {
  const auto mask = static_cast<std::byte>(1 << bit);
  now_.at(static_cast<size_t>(offset)) ^= mask;
  durable_.at(static_cast<size_t>(offset)) ^= mask;
}

void SimMedium::write(Bytes offset, std::span<const std::byte> data) {
  if (data.empty()) return;
  std::memcpy(at(before_, offset), at(now_, offset), data.size());
  std::memcpy(at(now_, offset), data.data(), data.size());
  SimEvent event{SimEvent::Kind::kWrite, offset, {data.begin(), data.end()}};
  if (trace_ != nullptr) trace_->push_back(event);
  unflushed_.push_back(std::move(event));
}

void SimMedium::read(Bytes offset, std::span<std::byte> into, bool stale) const {
  const std::vector<std::byte>& image = stale ? before_ : now_;
  std::memcpy(into.data(), image.data() + offset, into.size());
}

void SimMedium::flush() {
  for (const SimEvent& event : unflushed_) {
    std::memcpy(at(durable_, event.offset), event.data.data(), event.data.size());
  }
  unflushed_.clear();
  if (trace_ != nullptr) trace_->push_back({SimEvent::Kind::kFlush, 0, {}});
}

std::vector<std::byte> SimMedium::crash(SimRandom& random) const {
  struct Sector {
    const SimEvent* event;
    Bytes begin;
  };
  std::vector<Sector> sectors;
  for (const SimEvent& event : unflushed_) {
    for (Bytes begin = 0; begin < static_cast<Bytes>(event.data.size()); begin += kSectorBytes) {
      sectors.push_back({&event, begin});
    }
  }
  for (size_t i = sectors.size(); i > 1; --i) {
    std::swap(sectors[i - 1], sectors[random.below(i)]);
  }
  std::vector<std::byte> image = durable_;
  for (const Sector& sector : sectors) {
    if (random.below(2) == 0) continue;
    const Bytes end =
        std::min(sector.begin + kSectorBytes, static_cast<Bytes>(sector.event->data.size()));
    std::memcpy(at(image, sector.event->offset + sector.begin),
                sector.event->data.data() + sector.begin, static_cast<size_t>(end - sector.begin));
  }
  return image;
}

SimFile::SimFile(SimMedium* medium, std::string path, SimOptions options)
    : medium_(medium),
      path_(std::move(path)),
      options_(std::move(options)),
      random_(options_.seed) {}

void SimFile::submit(const BlockOp& op) {
  LONGSHORE_CHECK(static_cast<int>(pending_.size()) < options_.depth) << path_;
  const int64_t index = operations_++;
  std::optional<SimFault> fault;
  if (options_.inject) fault = options_.inject(index, op);
  pending_.push_back({op, fault});
}

// Chooses any operation in flight, delayed ones only when there is no other.
size_t SimFile::choose() {
  if (options_.in_order) return 0;
  std::vector<size_t> ready;
  for (size_t i = 0; i < pending_.size(); ++i) {
    const auto& fault = pending_[i].fault;
    if (!fault || fault->kind != SimFault::Kind::kDelay) ready.push_back(i);
  }
  if (ready.empty()) return random_.below(pending_.size());
  return ready[random_.below(ready.size())];
}

void SimFile::reap(std::vector<BlockCompletion>& completions) {
  LONGSHORE_CHECK(!pending_.empty()) << path_;
  const auto chosen = pending_.begin() + static_cast<std::ptrdiff_t>(choose());
  const Pending pending = *chosen;
  pending_.erase(chosen);
  completions.push_back({pending.op.tag, perform(pending.op, pending.fault)});
}

int64_t SimFile::perform(const BlockOp& op, const std::optional<SimFault>& fault) {
  const SimFault* how = fault ? &*fault : nullptr;
  if (how != nullptr && how->kind == SimFault::Kind::kError) return -how->error_number;
  const bool lost = how != nullptr && how->kind == SimFault::Kind::kLost;
  if (op.kind == BlockOp::Kind::kFlush) {
    if (!lost) medium_->flush();
    return 0;
  }
  const auto bytes = static_cast<Bytes>(op.memory.size());
  if (lost && op.kind == BlockOp::Kind::kWrite) return bytes;
  Bytes offset = op.offset;
  if (how != nullptr && how->kind == SimFault::Kind::kMisdirect) offset += how->shift;
  if (offset < 0 || offset % kBlockBytes != 0 || bytes % kBlockBytes != 0) return -EINVAL;
  return move(op, offset, how);
}

int64_t SimFile::move(const BlockOp& op, Bytes offset, const SimFault* fault) {
  Bytes bytes = std::min(static_cast<Bytes>(op.memory.size()), size_bytes() - offset);
  if (fault != nullptr && fault->kind == SimFault::Kind::kShort) {
    bytes = std::min(bytes, fault->bytes);
  }
  if (bytes <= 0) return 0;
  std::span<std::byte> memory = op.memory.first(static_cast<size_t>(bytes));
  const bool flips = fault != nullptr && fault->kind == SimFault::Kind::kBitFlip;
  const size_t flipped = flips ? random_.below(memory.size()) : 0;
  if (op.kind == BlockOp::Kind::kRead) {
    medium_->read(offset, memory, fault != nullptr && fault->kind == SimFault::Kind::kStale);
    if (flips) memory[flipped] ^= std::byte{4};
    return bytes;
  }
  std::vector<std::byte> data(memory.begin(), memory.end());
  if (flips) data[flipped] ^= std::byte{4};
  medium_->write(offset, data);
  return bytes;
}

SimInjector harmless_faults(uint64_t seed, double probability) {
  return [random = SimRandom(seed), probability](
             int64_t, const BlockOp& op) mutable -> std::optional<SimFault> {
    if (!random.chance(probability)) return std::nullopt;
    SimFault fault;
    switch (random.below(5)) {
      case 0:
        fault.error_number = EINTR;
        return fault;
      case 1:
        fault.error_number = EAGAIN;
        return fault;
      case 2:
        fault.error_number = ECANCELED;
        return fault;
      case 3:
        fault.kind = SimFault::Kind::kDelay;
        return fault;
      default:
        if (op.memory.empty()) return std::nullopt;
        fault.kind = SimFault::Kind::kShort;
        fault.bytes = 1 + static_cast<Bytes>(random.below(op.memory.size()));
        return fault;
    }
  };
}

}  // namespace longshore
