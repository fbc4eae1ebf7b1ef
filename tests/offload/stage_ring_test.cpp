#include "offload/staging/prefetcher.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr StateVersion kVersion(1);

struct RingOfTwo {
  void fill(const Placed& placed, Bytes bytes) {
    ring.begin_fill(placed, kVersion, bytes);
    ring.end_fill(placed, kVersion);
  }
  std::vector<std::byte> memory = std::vector<std::byte>(64 + 32);
  StageRing ring{{std::span(memory).first(64), std::span(memory).last(32)}};
};

// A leased slot cannot be filled, so a reader never sees the next unit's bytes.
TEST(StageRing, RefusesToFillALeasedSlot) {
  RingOfTwo two;
  two.fill({UnitId(0), DeviceSlot(0)}, 64);
  const UnitLease lease = two.ring.lease({UnitId(0), DeviceSlot(0)}, kVersion);
  EXPECT_THROW(two.fill({UnitId(1), DeviceSlot(0)}, 64), CheckFailure);
  EXPECT_NO_THROW(two.fill({UnitId(1), DeviceSlot(1)}, 32));
}

// A lease must name the unit and version in the slot; an update makes the old bytes' version old.
TEST(StageRing, LeasesOnlyTheUnitAndVersionThatTheSlotHolds) {
  RingOfTwo two;
  EXPECT_THROW(two.ring.lease({UnitId(0), DeviceSlot(0)}, kVersion), CheckFailure)
      << "nothing is there";
  two.fill({UnitId(0), DeviceSlot(0)}, 48);
  EXPECT_THROW(two.ring.lease({UnitId(0), DeviceSlot(0)}, StateVersion(2)), CheckFailure);
  EXPECT_THROW(two.ring.lease({UnitId(1), DeviceSlot(0)}, kVersion), CheckFailure);
  EXPECT_EQ(two.ring.lease({UnitId(0), DeviceSlot(0)}, kVersion).bytes().size(), 48u);
}

// A slot is free when its last lease ends.
TEST(StageRing, FreesASlotWhenItsLastLeaseEnds) {
  RingOfTwo two;
  two.fill({UnitId(0), DeviceSlot(0)}, 64);
  std::optional<UnitLease> first(two.ring.lease({UnitId(0), DeviceSlot(0)}, kVersion));
  std::optional<UnitLease> second(two.ring.lease({UnitId(0), DeviceSlot(0)}, kVersion));
  first.reset();
  EXPECT_THROW(two.fill({UnitId(2), DeviceSlot(0)}, 64), CheckFailure);
  second.reset();
  EXPECT_NO_THROW(two.fill({UnitId(2), DeviceSlot(0)}, 64));
}

// A slot that is being copied or gathered into can be neither leased nor filled.
TEST(StageRing, LeasesNothingThatIsNotComplete) {
  RingOfTwo two;
  const Placed placed{UnitId(0), DeviceSlot(0)};
  EXPECT_THROW(two.ring.end_fill(placed, kVersion), CheckFailure) << "nobody began";
  two.ring.begin_fill(placed, kVersion, 48);
  EXPECT_THROW(two.ring.lease(placed, kVersion), CheckFailure);
  EXPECT_THROW(two.ring.begin_fill({UnitId(1), DeviceSlot(0)}, kVersion, 48), CheckFailure);
  EXPECT_THROW(two.ring.filling({UnitId(1), DeviceSlot(0)}, kVersion), CheckFailure);
  EXPECT_EQ(two.ring.filling(placed, kVersion).size(), 48u);
  two.ring.end_fill(placed, kVersion);
  EXPECT_NO_THROW(two.ring.lease(placed, kVersion));
}

// A unit larger than the slot is refused.
TEST(StageRing, RefusesAUnitLargerThanTheSlot) {
  RingOfTwo two;
  EXPECT_THROW(two.fill({UnitId(0), DeviceSlot(1)}, 33), CheckFailure);
}

}  // namespace
}  // namespace longshore
