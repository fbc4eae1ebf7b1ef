// EngineDevice on the CPU, and for a GPU that does not exist.
#include "offload/engine/engine_device.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "device/cuda_runtime.h"

namespace longshore {
namespace {

// The CPU device has memory, copies and a torch device.
TEST(EngineDevice, OfTheCpuHasItsMemoryAndCopies) {
  EngineDevice device({.cap = 4 * kMiB, .owned = kMiB}, std::make_unique<CpuCopyEngine>());
  EXPECT_FALSE(device.cuda());
  EXPECT_EQ(device.torch(), at::Device(at::kCPU));
  const DeviceBuffer buffer = device.memory().carve("slot.0", kMiB);
  const std::vector<std::byte> source(100, std::byte{3});
  device.copies().to_device(buffer.bytes.first(100), source);
  EXPECT_EQ(buffer.bytes[99], std::byte{3});
  EXPECT_EQ(device.copies().counts().to_device, 100);
  const at::Tensor counted = at::empty({kMiB}, at::kByte);
  EXPECT_EQ(device.memory().usage().workspace.held, kMiB);
  device.adopt_lane(true);
  EXPECT_NO_THROW(device.finish("forward of block.0"));
}

// A GPU that does not exist is refused.
TEST(EngineDevice, WithoutItsGpuIsRefused) {
  const int absent = static_cast<int>(cuda_devices().size());
  EXPECT_THROW(
      EngineDevice({.kind = DeviceKind::kCuda, .gpu = absent, .cap = kMiB, .owned = 256}, nullptr),
      ConfigError);
}

}  // namespace
}  // namespace longshore
