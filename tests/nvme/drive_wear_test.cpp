// Reading a drive's wear.
#include "nvme/probe/drive_probe.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace longshore {
namespace {

// Wear is read from the SMART log.
TEST(DriveWear, IsReadFromTheSmartLog) {
  alignas(8) std::array<std::byte, kSmartLogBytes> log{};
  log[5] = std::byte{104};
  const uint64_t units = 3'000'000'000;
  std::memcpy(log.data() + 48, &units, sizeof(units));
  EXPECT_EQ(parse_smart_log(log), (DriveWear{1'536'000'000'000'000, 104}));
  // More bytes than fit into 64 bits give the largest number.
  std::memset(log.data() + 48, 0xff, 16);
  EXPECT_GT(parse_smart_log(log).written, Bytes{1} << 62);
}

// The wear of a path that is on no drive is unknown.
TEST(DriveWear, IsNotKnownOfWhatIsNoDrive) {
  EXPECT_FALSE(read_drive_wear("/proc/self"));
  EXPECT_FALSE(read_drive_wear("/proc/no-such-directory/inside"));
}

}  // namespace
}  // namespace longshore
