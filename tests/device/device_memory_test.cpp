// The cap of device memory: exact buffers, counted temporaries, errors that name the holders.
#include "device/device_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/errors.h"

namespace longshore {
namespace {

// Carved buffers are aligned to 256 bytes, zero and disjoint.
TEST(DeviceMemory, CarvesAlignedZeroFilledBuffersThatDoNotOverlap) {
  DeviceMemory memory(10000 * 256, 1024);
  const DeviceBuffer first = memory.carve("first", 300);
  const DeviceBuffer second = memory.carve("second", 512);
  EXPECT_EQ(first.bytes.size(), 512u);
  EXPECT_EQ(second.bytes.data(), first.bytes.data() + 512);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.bytes.data()) % 256, 0u);
  for (std::byte value : second.bytes) EXPECT_EQ(value, std::byte{0});
  EXPECT_NO_THROW(memory.check_carved());
}

// Carving beyond the planned bytes fails.
TEST(DeviceMemory, RefusesToCarveBeyondThePlan) {
  DeviceMemory memory(4096, 1024);
  memory.carve("a", 1000);
  EXPECT_THROW(memory.carve("b", 1), CheckFailure);
}

// Planned bytes without a buffer, and a name used twice, are found.
TEST(DeviceMemory, NoticesBytesWithoutABufferAndNamesUsedTwice) {
  DeviceMemory memory(4096, 1024);
  memory.carve("a", 256);
  EXPECT_THROW(memory.check_carved(), CheckFailure);
  EXPECT_THROW(memory.carve("a", 256), CheckFailure);
}

// Planned buffers beyond the cap or out of alignment are refused.
TEST(DeviceMemory, RefusesBuffersLargerThanTheCap) {
  EXPECT_THROW(DeviceMemory(1024, 2048), CheckFailure);
  EXPECT_THROW(DeviceMemory(1024, 100), CheckFailure) << "not a multiple of the alignment";
}

// The meter keeps current and peak bytes by label.
TEST(WorkspaceMeter, CountsCurrentAndPeakByLabel) {
  WorkspaceMeter meter(1000, 400);
  auto& forward = meter.account("block.0 forward");
  auto& backward = meter.account("block.0 backward");
  EXPECT_EQ(&forward, &meter.account("block.0 forward"));
  meter.take(forward, 100);
  meter.take(backward, 300);
  meter.give_back(forward, 100);
  EXPECT_EQ(meter.use().held, 300);
  EXPECT_EQ(meter.use().held_peak, 400);
  ASSERT_EQ(meter.held().size(), 1u);
  EXPECT_EQ(meter.held()[0].name, "block.0 backward");
  meter.reset_peak();
  EXPECT_EQ(meter.use().held_peak, 300);
}

// The last byte of the cap can be taken, and not one more.
TEST(WorkspaceMeter, AllowsTheLastByteAndNotOneMore) {
  WorkspaceMeter meter(1000, 400);
  auto& account = meter.account("a");
  EXPECT_NO_THROW(meter.take(account, 600));
  EXPECT_THROW(meter.take(account, 1), OutOfMemoryError);
  EXPECT_EQ(meter.use().held, 600);
  meter.give_back(account, 600);
  EXPECT_NO_THROW(meter.take(account, 600));
}

// An OutOfMemoryError lists the holders, largest first.
TEST(WorkspaceMeter, SaysWhoHeldWhatLargestFirst) {
  DeviceMemory memory(64 * kKiB, 48 * kKiB);
  memory.carve("slot.0", 16 * kKiB);
  memory.carve("input.block.0", 32 * kKiB);
  WorkspaceMeter& meter = *memory.workspace();
  meter.take(meter.account("block.1 forward"), 1 * kKiB);
  meter.take(meter.account("block.3 backward"), 12 * kKiB);
  try {
    meter.take(meter.account("block.3 backward"), 8 * kKiB);
    FAIL() << "over the cap";
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kOutOfMemory);
    for (const char* part :
         {"block.3 backward needs 8.0 KiB more", "cap is 64.0 KiB",
          "13.0 KiB of 16.0 KiB (block.3 backward 12.0 KiB, block.1 forward 1.0 KiB)",
          "buffers hold 48.0 KiB (input.block.0 32.0 KiB, slot.0 16.0 KiB)",
          "offload.device_memory"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
  }
}

// The message names only the six largest of many holders.
TEST(WorkspaceMeter, NamesOnlyTheLargestOfManyHolders) {
  std::vector<BytesHeld> held;
  for (int i = 0; i < 9; ++i) held.push_back({"b" + std::to_string(i), (i + 1) * kKiB});
  EXPECT_EQ(describe_largest(held),
            "b8 9.0 KiB, b7 8.0 KiB, b6 7.0 KiB, b5 6.0 KiB, b4 5.0 KiB, b3 4.0 KiB, "
            "3 more 6.0 KiB");
  EXPECT_EQ(describe_largest({}), "none");
}

}  // namespace
}  // namespace longshore
