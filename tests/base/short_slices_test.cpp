// ask_for_short_slices() shortens the scheduler's slices of a thread; policy and niceness stay.
#include "base/processor.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <thread>

namespace longshore {
namespace {

// Returns sched_runtime of struct sched_attr, in nanoseconds.
uint64_t own_slice() {
  std::array<uint64_t, 7> attributes = {};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0), 0);
  return attributes[3];
}

bool kernel_has_slices() {
  utsname system = {};
  int major = 0, minor = 0;
  EXPECT_EQ(uname(&system), 0);
  EXPECT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2) << system.release;
  return major > 6 || (major == 6 && minor >= 12);
}

// The calling thread and the threads that it makes get short slices; other threads do not.
TEST(ShortSlices, AreTheThreadsAndThoseItMakes) {
  const uint64_t before = own_slice();
  uint64_t own = 0, made = 0;
  int policy = -1, niceness = -1;
  const int niceness_before = getpriority(PRIO_PROCESS, 0);
  std::thread([&] {
    ask_for_short_slices();
    own = own_slice();
    policy = sched_getscheduler(0);
    niceness = getpriority(PRIO_PROCESS, 0);
    std::thread([&] { made = own_slice(); }).join();
  }).join();
  EXPECT_EQ(policy, sched_getscheduler(0));
  EXPECT_EQ(niceness, niceness_before);
  EXPECT_EQ(own_slice(), before) << "others keep theirs";
  const bool ordinary = sched_getscheduler(0) == SCHED_OTHER;
  const uint64_t wanted = ordinary && kernel_has_slices() ? 100'000 : before;
  EXPECT_EQ(own, wanted);
  EXPECT_EQ(made, wanted);
}

}  // namespace
}  // namespace longshore
