#include "offload/stage_ring.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/errors.h"

namespace longshore {
namespace {

struct RingOfTwo {
  std::vector<std::byte> memory = std::vector<std::byte>(2 * 64);
  StageRing ring{{std::span(memory).first(64), std::span(memory).last(64)}};
};

// A reader must never see the next unit's bytes under its lease.
TEST(StageRing, RefusesToRefillALeasedSlot) {
  RingOfTwo two;
  two.ring.refill(UnitId(0), StateVersion(1), 64);
  const UnitLease first = two.ring.lease(UnitId(0), StateVersion(1));
  two.ring.refill(UnitId(1), StateVersion(1), 64);
  const UnitLease second = two.ring.lease(UnitId(1), StateVersion(1));
  EXPECT_THROW(two.ring.refill(UnitId(2), StateVersion(1), 64), CheckFailure);
}

TEST(StageRing, RefillsTheSlotUnusedForLongest) {
  RingOfTwo two;
  two.ring.refill(UnitId(0), StateVersion(1), 64);
  two.ring.refill(UnitId(1), StateVersion(1), 64);
  {
    const UnitLease use = two.ring.lease(UnitId(0), StateVersion(1));
  }
  two.ring.refill(UnitId(2), StateVersion(1), 64);
  EXPECT_TRUE(two.ring.holds(UnitId(0), StateVersion(1)));
  EXPECT_FALSE(two.ring.holds(UnitId(1), StateVersion(1)));
}

// After an update the old bytes are still in the slot, under the old version.
TEST(StageRing, DoesNotLeaseAnotherVersion) {
  RingOfTwo two;
  two.ring.refill(UnitId(0), StateVersion(1), 64);
  EXPECT_THROW(two.ring.lease(UnitId(0), StateVersion(2)), CheckFailure);
  EXPECT_FALSE(two.ring.holds(UnitId(0), StateVersion(2)));
}

TEST(StageRing, FreesASlotWhenItsLastLeaseEnds) {
  RingOfTwo two;
  two.ring.refill(UnitId(0), StateVersion(1), 64);
  two.ring.refill(UnitId(1), StateVersion(1), 64);
  const UnitLease kept = two.ring.lease(UnitId(1), StateVersion(1));
  std::optional<UnitLease> first(two.ring.lease(UnitId(0), StateVersion(1)));
  std::optional<UnitLease> second(two.ring.lease(UnitId(0), StateVersion(1)));
  first.reset();
  EXPECT_THROW(two.ring.refill(UnitId(2), StateVersion(1), 64), CheckFailure);
  second.reset();
  EXPECT_NO_THROW(two.ring.refill(UnitId(2), StateVersion(1), 64));
}

TEST(StageRing, RefusesAUnitLargerThanASlot) {
  RingOfTwo two;
  EXPECT_THROW(two.ring.refill(UnitId(0), StateVersion(1), 65), CheckFailure);
}

}  // namespace
}  // namespace longshore
