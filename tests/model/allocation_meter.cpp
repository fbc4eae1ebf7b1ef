#include "tests/model/allocation_meter.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>

namespace longshore {
namespace {

constexpr size_t kAlignment = 64;
std::atomic<Bytes> live_bytes{0};
std::atomic<Bytes> peak_bytes{0};
std::atomic<bool> counting{false};

struct alignas(kAlignment) Header {
  Bytes counted;
};

void free_block(void* data) {
  if (data == nullptr) return;
  Header* header = static_cast<Header*>(data) - 1;
  live_bytes -= header->counted;
  std::free(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, c10::Device(c10::DeviceType::CPU)};
    const auto size = static_cast<size_t>(align_up(static_cast<int64_t>(bytes), kAlignment));
    auto* header = static_cast<Header*>(std::aligned_alloc(kAlignment, size + sizeof(Header)));
    header->counted = counting ? static_cast<Bytes>(size) : 0;
    const Bytes live = live_bytes += header->counted;
    Bytes peak = peak_bytes;
    while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
    }
    return {header + 1, header + 1, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

AllocationMeter::AllocationMeter() {
  static auto* allocator = new CountingAllocator;
  c10::SetCPUAllocator(allocator, 100);
  live_bytes = 0;
  peak_bytes = 0;
  counting = true;
}

AllocationMeter::~AllocationMeter() {
  counting = false;
}

Bytes AllocationMeter::live() const {
  return live_bytes;
}
Bytes AllocationMeter::peak() const {
  return peak_bytes;
}

}  // namespace longshore
