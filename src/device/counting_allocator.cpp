#include "device/counting_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "base/errors.h"
#include "base/mutex.h"

namespace longshore {
namespace {

constexpr size_t kAlignment = 64;
// This is above the priority of LibTorch's own allocator (0).
constexpr uint8_t kPriority = 10;

// The header is in front of each block. Blocks allocated without a budget have no meter.
struct alignas(kAlignment) BlockHeader {
  std::shared_ptr<WorkspaceMeter> meter;
  WorkspaceMeter::Account* account = nullptr;
  Bytes counted = 0;
};
static_assert(sizeof(BlockHeader) == kAlignment);

struct InForce {
  Mutex mutex;
  std::shared_ptr<WorkspaceMeter> meter LONGSHORE_GUARDED_BY(mutex);
};

// This is never destroyed: LibTorch frees static tensors after our own statics are destroyed.
InForce& in_force() {
  static auto* value = new InForce;
  return *value;
}

struct ThreadLabel {
  std::shared_ptr<WorkspaceMeter> meter;
  WorkspaceMeter::Account* account = nullptr;
};
thread_local ThreadLabel thread_label;

struct LastLabel {
  Mutex mutex;
  std::string text LONGSHORE_GUARDED_BY(mutex) = "unlabelled";
};
LastLabel& last_label() {
  static auto* value = new LastLabel;
  return *value;
}

std::shared_ptr<WorkspaceMeter> current_meter() {
  const MutexLock lock(in_force().mutex);
  return in_force().meter;
}

void release(BlockHeader* header) noexcept {
  if (header->meter) header->meter->give_back(*header->account, header->counted);
  header->~BlockHeader();
  std::free(header);
}

void delete_block(void* data) {
  if (data != nullptr) release(static_cast<BlockHeader*>(data) - 1);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : allocate_block(bytes);
    return {data, data, &delete_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }

 private:
  static void* allocate_block(size_t bytes) {
    // A size that became negative in LibTorch arrives as a huge unsigned number.
    if (bytes > static_cast<size_t>(PTRDIFF_MAX) - 2 * kAlignment) {
      throw OutOfMemoryError("device memory: a tensor of " + std::to_string(bytes) +
                             " bytes is larger than any memory");
    }
    const Bytes counted = align_up(static_cast<Bytes>(bytes), kAlignment);
    std::shared_ptr<WorkspaceMeter> meter = current_meter();
    WorkspaceMeter::Account* account = nullptr;
    if (meter) {
      account = thread_label.meter == meter ? thread_label.account : &meter->account("unlabelled");
      meter->take(*account, counted);
    }
    void* place = std::aligned_alloc(kAlignment, static_cast<size_t>(counted) + kAlignment);
    if (place == nullptr) {
      if (meter) meter->give_back(*account, counted);
      throw OutOfMemoryError("device memory: the system refused " + format_bytes(counted) +
                             " for a tensor");
    }
    return new (place) BlockHeader{std::move(meter), account, counted} + 1;
  }
};

}  // namespace

c10::Allocator& counting_allocator() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

WorkspaceBudget::WorkspaceBudget(const DeviceMemory& memory) : mine_(memory.workspace()) {
  c10::SetCPUAllocator(&counting_allocator(), kPriority);
  const MutexLock lock(in_force().mutex);
  before_ = std::exchange(in_force().meter, mine_);
}

WorkspaceBudget::~WorkspaceBudget() {
  const MutexLock lock(in_force().mutex);
  in_force().meter = std::move(before_);
}

WorkspaceLabel::WorkspaceLabel(std::string_view label)
    : meter_before_(std::move(thread_label.meter)), account_before_(thread_label.account) {
  thread_label = {current_meter(), nullptr};
  if (thread_label.meter) thread_label.account = &thread_label.meter->account(label);
  const MutexLock lock(last_label().mutex);
  last_label().text = label;
}

std::string current_workspace_label() {
  if (thread_label.account != nullptr) return thread_label.account->label;
  const MutexLock lock(last_label().mutex);
  return last_label().text;
}

WorkspaceLabel::~WorkspaceLabel() {
  thread_label = {std::move(meter_before_), account_before_};
}

}  // namespace longshore
