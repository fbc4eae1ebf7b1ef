// Mapped memory, copies, compute threads, and the CUDA runtime without a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "base/errors.h"
#include "device/compute_threads.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

// A mapping is zero, has exactly the requested size, and can be moved.
TEST(HostMapping, IsZeroFilledExactAndMovable) {
  HostMapping mapping(3 * kMiB + 5, "test");
  EXPECT_EQ(mapping.bytes().size(), static_cast<size_t>(3 * kMiB + 5));
  for (std::byte value : mapping.bytes()) ASSERT_EQ(value, std::byte{0});
  mapping.bytes().back() = std::byte{7};
  const HostMapping moved = std::move(mapping);
  EXPECT_EQ(moved.bytes().back(), std::byte{7});
  EXPECT_TRUE(HostMapping().bytes().empty());
}

// A mapping starts at a multiple of 2 MiB, so that huge pages can back it.
TEST(HostMapping, StartsWhereHugePagesCan) {
  const HostMapping mapping(5 * kMiB, "test");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping.bytes().data()) % static_cast<uintptr_t>(2 * kMiB),
            0u);
  EXPECT_EQ(huge_page_bytes(mapping.bytes()) % (2 * kMiB), 0);
}

// A mapping that the system refuses gives an error with its purpose.
TEST(HostMapping, NamesItsPurposeWhenTheSystemRefuses) {
  for (Bytes bytes : {Bytes{1} << 60, INT64_MAX}) {
    try {
      const HostMapping mapping(bytes, "host tier");
      FAIL() << bytes;
    } catch (const OutOfMemoryError& error) {
      EXPECT_NE(std::string(error.what()).find("host tier"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("offload.host_memory"), std::string::npos);
    }
  }
}

// The copy engine copies and counts both directions.
TEST(CopyEngine, CopiesAndCountsBothDirections) {
  std::array<std::byte, 100> host{};
  std::array<std::byte, 100> device{};
  host[99] = std::byte{42};
  CpuCopyEngine engine;
  engine.to_device(device, host);
  EXPECT_EQ(device[99], std::byte{42});
  engine.to_host(std::span(host).first(10), std::span(device).last(10));
  EXPECT_EQ(host[9], std::byte{42});
  EXPECT_EQ(engine.counts().to_device, 100);
  EXPECT_EQ(engine.counts().to_host, 10);
  EXPECT_THROW(engine.to_host(std::span(host).first(10), device), CheckFailure);
}

// set_compute_threads() sets the number of threads and the reproducible mode for every thread.
TEST(ComputeThreads, SetsStrictModeAndThreadsForEveryThread) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int threads : {1, std::min(2, cores)}) {
    const ComputeSettings settings = set_compute_threads(threads);
    EXPECT_EQ(settings.threads, threads);
    EXPECT_EQ(settings.inter_op_threads, 1);
    if (!settings.mkl_cbwr.empty()) {
      EXPECT_EQ(settings.mkl_cbwr, std::getenv("MKL_CBWR"));
      EXPECT_TRUE(settings.mkl_cbwr.ends_with(",STRICT"));
    }
    int seen = 0;
    std::thread([&seen] { seen = adopt_compute_threads(); }).join();
    EXPECT_EQ(seen, threads);
  }
}

// LibTorch and oneDNN keep little memory for products of many shapes, as documents of many lengths
// make them (90 KiB for each shape otherwise). CPUs without bf16 in oneDNN keep nothing.
TEST(ComputeThreads, KeepLittleOfProductsOfManyShapes) {
  set_compute_threads(1);
  const auto held = [] {
    const struct mallinfo2 heap = mallinfo2();
    return static_cast<Bytes>(heap.uordblks + heap.hblkhd);
  };
  const at::Tensor weight = at::ones({64, 64}, at::kBFloat16);
  const auto multiply = [&](int first, int last) {
    for (int rows = first; rows < last; ++rows) {
      EXPECT_EQ(at::mm(at::ones({rows, 64}, at::kBFloat16), weight).size(0), rows);
    }
  };
  multiply(100, 200);  // by now the caches are full
  const Bytes before = held();
  multiply(200, 800);
  EXPECT_LT(held() - before, 8 * kMiB);
}

// Without a GPU the CUDA runtime lists no devices and registers no memory.
TEST(CudaRuntime, WorksWithoutAGpu) {
  const std::vector<CudaDevice> devices = cuda_devices();
  if (!devices.empty()) GTEST_SKIP() << "this machine has " << devices.front().name;
  HostMapping mapping(kMiB, "test");
  const HostRegistration registration(mapping.bytes());
  EXPECT_FALSE(registration.registered());
}

// Host memory is registered with the GPU once and released at the end.
TEST(HostRegistrationGpu, RegistersMemory) {
  LONGSHORE_NEEDS_GPU();
  HostMapping mapping(kMiB, "test");
  HostRegistration registration(mapping.bytes());
  EXPECT_TRUE(registration.registered());
  EXPECT_THROW(HostRegistration(mapping.bytes()), CudaError) << "registered already";
  const HostRegistration moved = std::move(registration);
  EXPECT_TRUE(moved.registered());
  EXPECT_GT(cuda_free_bytes(0), 0);
}

}  // namespace
}  // namespace longshore
