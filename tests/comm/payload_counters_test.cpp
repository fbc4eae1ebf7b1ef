#include "comm/operations/communicator.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

// Goal: payload bytes are counted by kind and unit, and add up.
TEST(PayloadCounters, CountByKindAndUnit) {
  PayloadCounters counters;
  counters.add(CommKind::kAllGather, UnitId(0), 100);
  counters.add(CommKind::kAllGather, UnitId(1), 50);
  counters.add(CommKind::kScalars, std::nullopt, 8);
  counters.add_wait(CommKind::kAllGather, UnitId(1), 0.5);
  EXPECT_EQ(counters.total().all().payload, 158);
  EXPECT_EQ(counters.total().of(CommKind::kAllGather).operations, 2);
  EXPECT_EQ(counters.total().of(CommKind::kAllGather, UnitId(1)).payload, 50);
  EXPECT_EQ(counters.total().of(CommKind::kAllGather, UnitId(1)).waited_seconds, 0.5);
  EXPECT_EQ(counters.total().of(CommKind::kBarrier).operations, 0);
}

// Goal: take() returns what was counted since the last take() and leaves the total alone.
TEST(PayloadCounters, TakeGivesTheDifference) {
  PayloadCounters counters;
  counters.add(CommKind::kAllGather, UnitId(0), 100);
  EXPECT_EQ(counters.take().all().payload, 100);
  EXPECT_EQ(counters.take().all().operations, 0);
  counters.add(CommKind::kAllGather, UnitId(0), 7);
  EXPECT_EQ(counters.take().of(CommKind::kAllGather, UnitId(0)).payload, 7);
  EXPECT_EQ(counters.total().all().payload, 107);
}

}  // namespace
}  // namespace longshore
