#include "device/free_list.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace longshore {
namespace {

// Goal: the list makes as many objects as are in use at once, whatever the number of threads.
TEST(FreeList, LendsAgainWhatCameBack) {
  FreeList<int> list;
  int made = 0;
  const auto take = [&] { return list.take([&made] { return ++made; }); };
  for (int engine = 0; engine < 18; ++engine) {
    const auto first = take();
    std::thread([&] {
      static thread_local std::optional<FreeList<int>::Lease> adopted;
      adopted.emplace(take());
      EXPECT_NE(adopted->value(), first.value());
    }).join();
  }
  EXPECT_EQ(made, 2);
}

}  // namespace
}  // namespace longshore
