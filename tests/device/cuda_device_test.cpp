// The GPU's streams, arena, copies and cap. Without a GPU the tests check that each is refused, and
// the parts that need no GPU: the gauge and label of an allocator with its own count.
#include "device/cuda_device.h"

#include <ATen/ATen.h>
#include <c10/core/AllocatorConfig.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/counting_allocator.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "device/thread_stream.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

std::vector<std::byte> counting_bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

#if LONGSHORE_WITH_CUDA
// LibTorch's GPU allocator uses expandable segments.
TEST(CudaDevice, ItsAllocatorGrowsItsSegments) {
  use_growing_segments();
  EXPECT_TRUE(c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments());
}

// Goal: a process that used LibTorch's CPU first, and can never use a GPU, is told so with what to
// do; it was told that "libtorch_cuda.so registered nothing".
TEST(CudaDevice, ItsKernelsAreLoadedBeforeLibTorchIsUsed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // each in a process of its own
  const auto load = [] {
    try {
      load_gpu_kernels();
      std::fputs("loaded", stderr);
    } catch (const ConfigError& error) {
      std::fputs(error.what(), stderr);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(
      {
        load_gpu_kernels();
        at::manual_seed(1);
        load();
      },
      testing::ExitedWithCode(0), "^loaded$");
  EXPECT_EXIT(
      {
        at::manual_seed(1);
        load();
      },
      testing::ExitedWithCode(0),
      "used before its GPU kernels were loaded.*call longshore::load_gpu_kernels");
}
#endif

// Goal: without a GPU every call gives an error that names the run-file key, and nothing crashes.
TEST(CudaDevice, NamesTheKeyWhereThereIsNoGpu) {
  const auto refused = [](const auto& call) {
    try {
      call();
    } catch (const ConfigError& error) {
      return std::string(error.what()).find("device.kind") != std::string::npos;
    }
    return false;
  };
  const int absent = static_cast<int>(cuda_devices().size());
  EXPECT_TRUE(refused([&] { prepare_cuda(absent); }));
  EXPECT_TRUE(refused([&] { make_cuda_arena(256, absent); }));
  EXPECT_TRUE(refused([&] { make_cuda_copy_engine(absent); }));
  EXPECT_TRUE(refused([&] { adopt_cuda_stream(absent, StreamPriority::kNormal); }));
  EXPECT_TRUE(refused([&] { require_gpu(-1); }));
}

// A new arena in host memory is all zeros.
TEST(DeviceArena, OfTheHostIsZeroFilled) {
  const auto arena = make_host_arena(1000);
  ASSERT_EQ(arena->bytes().size(), 1000u);
  for (std::byte value : arena->bytes()) ASSERT_EQ(value, std::byte{0});
}

class FixedGauge final : public WorkspaceMeter::Gauge {
 public:
  WorkspaceUse use() const override {
    return {.held = 3 * kMiB, .held_peak = peak_, .tensors = kMiB, .tensors_peak = 2 * kMiB};
  }
  void reset_peak() override { peak_ = 3 * kMiB; }

 private:
  Bytes peak_ = 5 * kMiB;
};

// Goal: memory that LibTorch's own allocator counts is reported and refused like counted memory.
TEST(WorkspaceMeter, FollowsAnAllocatorThatKeepsCountItself) {
  DeviceMemory memory(16 * kMiB, 4 * kMiB);
  memory.carve("slot.0", 4 * kMiB);
  memory.workspace()->follow(std::make_shared<FixedGauge>());
  EXPECT_EQ(memory.usage().workspace.held, 3 * kMiB);
  EXPECT_EQ(memory.usage().peak(), 9 * kMiB);
  memory.reset_peak();
  EXPECT_EQ(memory.usage().workspace.held_peak, 3 * kMiB);
  try {
    memory.workspace()->refuse("block.3 backward", 10 * kMiB);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kOutOfMemory);
    const std::string text = error.what();
    EXPECT_NE(text.find("block.3 backward needs 10.0 MiB more"), std::string::npos) << text;
    EXPECT_NE(text.find("workspace holds 3.0 MiB of 12.0 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("slot.0 4.0 MiB"), std::string::npos) << text;
  }
}

// Goal: a LibTorch thread that runs a unit's backward counts under that unit's label.
TEST(WorkspaceLabel, IsKnownOnThreadsThatHaveNone) {
  DeviceMemory memory(kMiB, 0);
  const WorkspaceBudget budget(memory);
  const WorkspaceLabel label("block.7 backward");
  EXPECT_EQ(current_workspace_label(), "block.7 backward");
  std::string elsewhere;
  std::thread([&] { elsewhere = current_workspace_label(); }).join();
  EXPECT_EQ(elsewhere, "block.7 backward");
}

// Copies to the GPU and back keep their order and bytes, and are counted.
TEST(Gpu, CopiesThereAndBackInOrderAndCounts) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const std::vector<std::byte> sent = counting_bytes(3 * kMiB + 17);
  std::vector<std::byte> received(sent.size());
  const auto arena = make_cuda_arena(align_up(static_cast<Bytes>(sent.size()), 256), 0);
  const auto copies = make_cuda_copy_engine(0);
  const auto adopt = [] { adopt_cuda_stream(0, StreamPriority::kHigh); };
  ThreadStream down("h2d", std::nullopt, adopt), up("d2h", std::nullopt, adopt);
  const auto place = arena->bytes().first(sent.size());
  const Event there = down.enqueue({}, [&] {
    copies->to_device(place, sent);
    copies->finish();
  });
  const Event back = up.enqueue({&there, 1}, [&] {
    copies->to_host(received, place);
    copies->finish();
  });
  back.wait();
  EXPECT_EQ(received, sent);
  EXPECT_EQ(copies->counts().to_device, static_cast<Bytes>(sent.size()));
  EXPECT_EQ(copies->counts().to_host, static_cast<Bytes>(sent.size()));
}

// A new arena on the GPU is all zeros.
TEST(Gpu, ArenaIsZeroFilled) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const auto arena = make_cuda_arena(kMiB, 0);
  std::vector<std::byte> received(static_cast<size_t>(kMiB), std::byte{1});
  const auto copies = make_cuda_copy_engine(0);
  adopt_cuda_stream(0, StreamPriority::kNormal);
  copies->to_host(received, arena->bytes());
  copies->finish();
  EXPECT_EQ(received, std::vector<std::byte>(received.size(), std::byte{0}));
}

// Goal: LibTorch on the GPU keeps to the cap; beyond it the error names the holders (exit code 4).
TEST(Gpu, LibTorchKeepsToTheCap) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  DeviceMemory memory(256 * kMiB, make_cuda_arena(128 * kMiB, 0));
  memory.carve("slot.0", 128 * kMiB);
  const CudaWorkspaceBudget budget(memory, 0);
  const WorkspaceLabel label("block.1 forward");
  const auto options = at::TensorOptions().device(at::kCUDA).dtype(at::kByte);
  {
    const at::Tensor fits = at::empty({64 * kMiB}, options);
    EXPECT_GE(memory.usage().workspace.held, 64 * kMiB);
    try {
      const at::Tensor more = at::empty({100 * kMiB}, options);
      FAIL() << memory.usage().workspace.held;
    } catch (const OutOfMemoryError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("block.1 forward needs 100.0 MiB more"), std::string::npos) << text;
      EXPECT_NE(text.find("slot.0 128.0 MiB"), std::string::npos) << text;
    }
  }
  EXPECT_LE(memory.usage().peak(), 256 * kMiB);
}

// An arena larger than the GPU is refused, and later arenas work.
TEST(Gpu, ArenaLargerThanTheGpuIsRefused) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  EXPECT_THROW(make_cuda_arena(cuda_devices()[0].memory_bytes * 2, 0), OutOfMemoryError);
  EXPECT_NO_THROW(make_cuda_arena(kMiB, 0)) << "the refusal is not sticky";
}

// Goal: matrix products and sums give the same bits when repeated.
TEST(Gpu, ArithmeticRepeats) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const auto once = [] {
    at::manual_seed(1);
    const at::Tensor a = at::randn({777, 513}).to(at::kCUDA).to(at::kBFloat16);
    const at::Tensor b = at::randn({513, 1025}).to(at::kCUDA).to(at::kBFloat16);
    at::Tensor sums = at::zeros({50, 1025}, a.options().dtype(at::kFloat));
    const at::Tensor rows = at::randint(0, 50, {777}).to(at::kCUDA);
    sums.index_add_(0, rows, at::mm(a, b).to(at::kFloat));
    return sums.cpu();
  };
  EXPECT_TRUE(at::equal(once(), once()));
}

}  // namespace
}  // namespace longshore
