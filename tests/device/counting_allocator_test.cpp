// LibTorch's CPU allocations count against the cap of device memory.
#include "device/counting_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include "base/errors.h"

namespace longshore {
namespace {

// The bytes of a tensor count as long as it lives, in steps of 64.
TEST(CountingAllocator, CountsTensorsWhileTheyLive) {
  DeviceMemory memory(kMiB, 0);
  const WorkspaceBudget budget(memory);
  {
    const at::Tensor tensor = at::empty({1000}, at::kFloat);
    EXPECT_EQ(memory.usage().workspace.held, 4032);  // 4000 rounded up to a multiple of 64
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u);
  }
  EXPECT_EQ(memory.usage().workspace.held, 0);
  EXPECT_EQ(memory.usage().workspace.held_peak, 4032);
}

// A LibTorch call beyond the cap throws OutOfMemoryError; the allocator stays usable.
TEST(CountingAllocator, ThrowsOurErrorOutOfALibTorchCallAndStaysUsable) {
  DeviceMemory memory(kMiB, 0);
  const WorkspaceBudget budget(memory);
  EXPECT_THROW(at::ones({1024, 1024}, at::kFloat), OutOfMemoryError);
  EXPECT_EQ(memory.usage().workspace.held, 0);
  EXPECT_NO_THROW(at::ones({1024, 100}, at::kFloat));
}

// Backward beyond the cap throws OutOfMemoryError.
TEST(CountingAllocator, ThrowsOurErrorOutOfAutograd) {
  DeviceMemory memory(2 * kMiB, 0);
  const WorkspaceBudget budget(memory);
  const at::Tensor leaf = at::ones({64, 64}).set_requires_grad(true);
  // Backward makes a product of 640 KiB beside the 1656 KiB that are held by then.
  const at::Tensor wide = at::ones({40, 64, 64});
  const at::Tensor out = (leaf.expand({40, 64, 64}) * wide).sum();
  const at::Tensor ballast = at::empty({250 * 1024}, at::kFloat);
  EXPECT_THROW(torch::autograd::grad({out}, {leaf}), OutOfMemoryError);
}

// Bytes count under the innermost label.
TEST(CountingAllocator, BooksBytesUnderTheInnermostLabel) {
  DeviceMemory memory(kMiB, 0);
  const WorkspaceBudget budget(memory);
  const WorkspaceLabel outer("block.0 forward");
  const at::Tensor a = at::empty({64}, at::kFloat);
  at::Tensor b;
  {
    const WorkspaceLabel inner("block.1 forward");
    b = at::empty({128}, at::kFloat);
  }
  const at::Tensor c = at::empty({16}, at::kFloat);
  const std::vector<BytesHeld> held = memory.workspace()->held();
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].name, "block.1 forward");
  EXPECT_EQ(held[0].bytes, 512);
  EXPECT_EQ(held[1].name, "block.0 forward");
  EXPECT_EQ(held[1].bytes, 320);
}

// A tensor may outlive the budget that it was counted in.
TEST(CountingAllocator, LetsMemoryOutliveItsBudget) {
  at::Tensor survivor;
  std::shared_ptr<WorkspaceMeter> meter;
  {
    DeviceMemory memory(kMiB, 0);
    meter = memory.workspace();
    const WorkspaceBudget budget(memory);
    const WorkspaceLabel label("survivor");
    survivor = at::ones({256}, at::kFloat);
  }
  EXPECT_EQ(meter->use().held, 1024);
  DeviceMemory other(kMiB, 0);
  const WorkspaceBudget budget(other);
  survivor.reset();
  EXPECT_EQ(meter->use().held, 0);
  EXPECT_EQ(other.usage().workspace.held, 0)
      << "freed bytes belong to the budget that counted them";
}

// The end of a budget restores the one before; without a budget nothing is counted.
TEST(CountingAllocator, RestoresTheBudgetBeforeAndCountsNothingWithoutOne) {
  DeviceMemory outer(kMiB, 0);
  DeviceMemory inner(kMiB, 0);
  at::Tensor in_outer, in_inner;
  {
    const WorkspaceBudget first(outer);
    {
      const WorkspaceBudget second(inner);
      in_inner = at::empty({16}, at::kFloat);
    }
    in_outer = at::empty({32}, at::kFloat);
  }
  const at::Tensor in_none = at::empty({1024, 1024}, at::kFloat);
  EXPECT_EQ(inner.usage().workspace.held, 64);
  EXPECT_EQ(outer.usage().workspace.held, 128);
}

// A label of an earlier budget is not used in a later one.
TEST(CountingAllocator, KeepsLabelsOfAnEarlierBudgetOutOfALaterOne) {
  DeviceMemory first(kMiB, 0);
  DeviceMemory second(kMiB, 0);
  const WorkspaceBudget one(first);
  const WorkspaceLabel label("of the first");
  const WorkspaceBudget two(second);
  const at::Tensor tensor = at::empty({16}, at::kFloat);
  EXPECT_EQ(first.usage().workspace.held, 0);
  ASSERT_EQ(second.workspace()->held().size(), 1u);
  EXPECT_EQ(second.workspace()->held()[0].name, "unlabelled");
}

// Allocations of all threads count together.
TEST(CountingAllocator, CountsThreadsTogether) {
  DeviceMemory memory(64 * kMiB, 0);
  const WorkspaceBudget budget(memory);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      const WorkspaceLabel label("thread " + std::to_string(i));
      for (int n = 0; n < 500; ++n) {
        const c10::DataPtr a = counting_allocator().allocate(100);
        const c10::DataPtr b = counting_allocator().allocate(200);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.usage().workspace.held, 0);
  EXPECT_GE(memory.usage().workspace.held_peak, 128 + 256);
  EXPECT_LE(memory.usage().workspace.held_peak, 4 * (128 + 256));
}

// An allocation of zero bytes is null, and impossible sizes are refused.
TEST(CountingAllocator, GivesNoMemoryForNothingAndRefusesImpossibleSizes) {
  DeviceMemory memory(kMiB, 0);
  const WorkspaceBudget budget(memory);
  EXPECT_EQ(counting_allocator().allocate(0).get(), nullptr);
  EXPECT_THROW(counting_allocator().allocate(SIZE_MAX), OutOfMemoryError);
  EXPECT_THROW(counting_allocator().allocate(SIZE_MAX / 2), OutOfMemoryError);
  EXPECT_EQ(memory.usage().workspace.held, 0);
}

// The test is left out under sanitizers, whose allocator ends the process here.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A refusal of the system becomes an OutOfMemoryError.
TEST(CountingAllocator, SaysSoWhenTheSystemRefuses) {
  // The size is within the cap, but beyond any address space.
  DeviceMemory memory(INT64_MAX, 0);
  const WorkspaceBudget budget(memory);
  EXPECT_THROW(counting_allocator().allocate(size_t{1} << 61), OutOfMemoryError);
  EXPECT_EQ(memory.usage().workspace.held, 0);
}
#endif

// The raw interface of the allocator counts as well.
TEST(CountingAllocator, ServesTheRawInterface) {
  DeviceMemory memory(kMiB, 0);
  const WorkspaceBudget budget(memory);
  void* block = counting_allocator().raw_allocate(100);
  EXPECT_EQ(memory.usage().workspace.held, 128);
  counting_allocator().raw_deallocate(block);
  EXPECT_EQ(memory.usage().workspace.held, 0);
}

}  // namespace
}  // namespace longshore
