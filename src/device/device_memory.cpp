#include "device/device_memory.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/mutex.h"
#include "device/host_mapping.h"

namespace longshore {
namespace {

// The largest number of holders that an error text names.
constexpr size_t kNamedHolders = 6;

void sort_largest_first(std::vector<BytesHeld>& held) {
  std::stable_sort(held.begin(), held.end(),
                   [](const BytesHeld& a, const BytesHeld& b) { return a.bytes > b.bytes; });
}

}  // namespace

std::string describe_largest(std::vector<BytesHeld> held) {
  sort_largest_first(held);
  std::string text;
  for (size_t i = 0; i < std::min(held.size(), kNamedHolders); ++i) {
    if (!text.empty()) text += ", ";
    text += held[i].name + " " + format_bytes(held[i].bytes);
  }
  Bytes rest = 0;
  for (size_t i = kNamedHolders; i < held.size(); ++i) rest += held[i].bytes;
  if (held.size() > kNamedHolders) {
    text += ", " + std::to_string(held.size() - kNamedHolders) + " more " + format_bytes(rest);
  }
  return text.empty() ? "none" : text;
}

WorkspaceMeter::WorkspaceMeter(Bytes cap, Bytes owned) : cap_(cap), owned_(owned) {
  LONGSHORE_CHECK(owned >= 0 && owned <= cap) << owned << " of " << cap;
}

WorkspaceMeter::Account& WorkspaceMeter::account(std::string_view label) {
  const MutexLock lock(mutex_);
  const auto found = accounts_.find(label);
  if (found != accounts_.end()) return found->second;
  const std::string name(label);
  return accounts_.emplace(name, Account{name, 0}).first->second;
}

void WorkspaceMeter::take(Account& account, Bytes bytes) {
  const MutexLock lock(mutex_);
  if (bytes > limit() - current_) throw_over(account.label, bytes, current_);
  current_ += bytes;
  account.bytes += bytes;
  peak_ = std::max(peak_, current_);
}

void WorkspaceMeter::give_back(Account& account, Bytes bytes) {
  const MutexLock lock(mutex_);
  LONGSHORE_CHECK(account.bytes >= bytes) << account.label;
  current_ -= bytes;
  account.bytes -= bytes;
}

void WorkspaceMeter::set_owned(std::vector<BytesHeld> buffers) {
  const MutexLock lock(mutex_);
  buffers_ = std::move(buffers);
}

void WorkspaceMeter::follow(std::shared_ptr<Gauge> gauge) {
  const MutexLock lock(mutex_);
  gauge_ = std::move(gauge);
}

void WorkspaceMeter::refuse(const std::string& label, Bytes bytes) const {
  const MutexLock lock(mutex_);
  throw_over(label, bytes, gauge_ ? gauge_->use().held : current_);
}

WorkspaceUse WorkspaceMeter::use() const {
  const MutexLock lock(mutex_);
  if (gauge_) return gauge_->use();
  return {.held = current_, .held_peak = peak_, .tensors = current_, .tensors_peak = peak_};
}

void WorkspaceMeter::reset_peak() {
  const MutexLock lock(mutex_);
  if (gauge_) {
    gauge_->reset_peak();
  } else {
    peak_ = current_;
  }
}

std::vector<BytesHeld> WorkspaceMeter::held() const {
  const MutexLock lock(mutex_);
  return held_locked();
}

std::vector<BytesHeld> WorkspaceMeter::held_locked() const {
  std::vector<BytesHeld> held;
  for (const auto& [label, account] : accounts_) {
    if (account.bytes > 0) held.push_back({label, account.bytes});
  }
  sort_largest_first(held);
  return held;
}

void WorkspaceMeter::throw_over(const std::string& label, Bytes bytes, Bytes current) const {
  const std::vector<BytesHeld> held = held_locked();
  throw OutOfMemoryError(
      "device memory: " + label + " needs " + format_bytes(bytes) +
      " more, but the device's cap is " + format_bytes(cap_) + ": workspace holds " +
      format_bytes(current) + " of " + format_bytes(limit()) +
      (gauge_ ? "" : " (" + describe_largest(held) + ")") + ", buffers hold " +
      format_bytes(owned_) + " (" + describe_largest(buffers_) +
      "); raise offload.device_memory, or lower train.micro_batch or data.max_tokens");
}

namespace {

class HostArena final : public DeviceArena {
 public:
  explicit HostArena(Bytes bytes) : mapping_(bytes, "device memory") {}
  std::span<std::byte> bytes() const override { return mapping_.bytes(); }

 private:
  HostMapping mapping_;
};

struct GpuArenas {
  Mutex mutex;
  std::vector<std::span<const std::byte>> ranges LONGSHORE_GUARDED_BY(mutex);
};
GpuArenas& gpu_arenas() {
  static auto* value = new GpuArenas;
  return *value;
}

// Checks the sizes before any memory is mapped.
Bytes checked_owned(Bytes cap, Bytes owned) {
  LONGSHORE_CHECK(owned >= 0 && owned <= cap) << owned << " of " << cap;
  LONGSHORE_CHECK(owned % kDeviceBufferAlignment == 0) << owned;
  return owned;
}

}  // namespace

GpuBytes::GpuBytes(std::span<const std::byte> bytes) : begin_(bytes.data()) {
  const MutexLock lock(gpu_arenas().mutex);
  gpu_arenas().ranges.push_back(bytes);
}

GpuBytes::~GpuBytes() {
  if (begin_ == nullptr) return;
  const MutexLock lock(gpu_arenas().mutex);
  std::erase_if(gpu_arenas().ranges, [this](auto range) { return range.data() == begin_; });
}

bool in_gpu_arena(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  const MutexLock lock(gpu_arenas().mutex);
  return std::ranges::any_of(gpu_arenas().ranges, [bytes](auto range) {
    return bytes.data() >= range.data() && bytes.data() - range.data() <= std::ssize(range) &&
           std::ssize(bytes) <= std::ssize(range) - (bytes.data() - range.data());
  });
}

std::unique_ptr<DeviceArena> make_host_arena(Bytes bytes) {
  return std::make_unique<HostArena>(bytes);
}

DeviceMemory::DeviceMemory(Bytes cap, Bytes owned)
    : DeviceMemory(cap, make_host_arena(checked_owned(cap, owned))) {}

DeviceMemory::DeviceMemory(Bytes cap, std::unique_ptr<DeviceArena> arena)
    : cap_(cap),
      arena_(std::move(arena)),
      workspace_(std::make_shared<WorkspaceMeter>(cap, checked_owned(cap, owned()))) {}

DeviceMemory::~DeviceMemory() = default;

DeviceBuffer DeviceMemory::carve(const std::string& name, Bytes bytes) {
  LONGSHORE_CHECK(bytes >= 0) << name;
  const Bytes rounded = align_up(bytes, kDeviceBufferAlignment);
  LONGSHORE_CHECK(rounded <= owned() - carved_)
      << name << " of " << bytes << " bytes goes beyond the plan's " << owned();
  std::vector<BytesHeld> held = {{name, rounded}};
  for (const DeviceBuffer& buffer : buffers_) {
    LONGSHORE_CHECK(buffer.name != name) << "carved twice: " << name;
    held.push_back({buffer.name, static_cast<Bytes>(buffer.bytes.size())});
  }
  buffers_.push_back(
      {name, arena_->bytes().subspan(static_cast<size_t>(carved_), static_cast<size_t>(rounded))});
  carved_ += rounded;
  workspace_->set_owned(std::move(held));
  return buffers_.back();
}

void DeviceMemory::check_carved() const {
  LONGSHORE_CHECK(carved_ == owned()) << carved_ << " of " << owned() << " bytes have a buffer";
}

DeviceMemory::Usage DeviceMemory::usage() const {
  return {owned(), workspace_->use()};
}

void DeviceMemory::reset_peak() {
  workspace_->reset_peak();
}

}  // namespace longshore
