// The GPU's streams, arena, copies and cap. Without a GPU: that each says so; and the parts that
// need none, the gauge and the label of an allocator that keeps count itself.
#include "device/cuda_device.h"

#include <ATen/ATen.h>
#include <c10/core/AllocatorConfig.h>

#include <chrono>
#include <future>
#include <numeric>
#include <thread>

#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/counting_allocator.h"
#include "device/cuda_stream.h"
#include "device/device_arena.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

// An event that the test reaches or fails by hand, as a host thread would.
class HostPoint final : public Event::State {
 public:
  bool done() const override {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void wait() override { future_.get(); }
  void on_done(std::function<void()> call) override { calls_.push_back(std::move(call)); }
  void reach() {
    promise_.set_value();
    for (const auto& call : calls_) call();
  }
  void fail(const char* text) {
    promise_.set_exception(std::make_exception_ptr(std::runtime_error(text)));
    for (const auto& call : calls_) call();
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
  std::vector<std::function<void()>> calls_;
};

std::vector<std::byte> counting_bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

#if LONGSHORE_WITH_CUDA
TEST(CudaDevice, ItsAllocatorGrowsItsSegments) {
  use_growing_segments();
  EXPECT_TRUE(c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments());
}
#endif

// Goal: on a machine without a GPU nothing of it crashes or pretends; the message names the key.
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
  EXPECT_TRUE(refused([&] { CudaStream("compute", absent); }));
  EXPECT_TRUE(refused([&] { require_gpu(-1); }));
}

TEST(DeviceArena, OfTheHostIsZeroFilled) {
  const auto arena = make_host_arena(1000);
  ASSERT_EQ(arena->bytes().size(), 1000u);
  for (std::byte value : arena->bytes()) ASSERT_EQ(value, std::byte{0});
}

class FixedGauge final : public WorkspaceMeter::Gauge {
 public:
  Bytes current() const override { return 3 * kMiB; }
  Bytes peak() const override { return peak_; }
  void reset_peak() override { peak_ = current(); }

 private:
  Bytes peak_ = 5 * kMiB;
};

// Goal: memory that LibTorch's own allocator counts is reported, and refused, as ours is.
TEST(WorkspaceMeter, FollowsAnAllocatorThatKeepsCountItself) {
  DeviceMemory memory(16 * kMiB, 4 * kMiB);
  memory.carve("slot.0", 4 * kMiB);
  memory.workspace()->follow(std::make_shared<FixedGauge>());
  EXPECT_EQ(memory.usage().workspace, 3 * kMiB);
  EXPECT_EQ(memory.usage().peak(), 9 * kMiB);
  memory.reset_peak();
  EXPECT_EQ(memory.usage().workspace_peak, 3 * kMiB);
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

// Goal: a thread of LibTorch that runs a unit's backward knows whose memory it asks for.
TEST(WorkspaceLabel, IsKnownOnThreadsThatHaveNone) {
  DeviceMemory memory(kMiB, 0);
  const WorkspaceBudget budget(memory);
  const WorkspaceLabel label("block.7 backward");
  EXPECT_EQ(current_workspace_label(), "block.7 backward");
  std::string elsewhere;
  std::thread([&] { elsewhere = current_workspace_label(); }).join();
  EXPECT_EQ(elsewhere, "block.7 backward");
}

TEST(Gpu, CopiesThereAndBackInOrderAndCounts) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const std::vector<std::byte> sent = counting_bytes(3 * kMiB + 17);
  std::vector<std::byte> received(sent.size());
  const auto arena = make_cuda_arena(align_up(static_cast<Bytes>(sent.size()), 256), 0);
  const auto copies = make_cuda_copy_engine(0);
  CudaStream down("h2d", 0), up("d2h", 0, StreamPriority::kHigh);
  const auto place = arena->bytes().first(sent.size());
  const Event there = down.enqueue({}, [&] { copies->to_device(place, sent); });
  const Event back = up.enqueue({&there, 1}, [&] { copies->to_host(received, place); });
  back.wait();
  EXPECT_EQ(received, sent);
  EXPECT_EQ(copies->counts().to_device, static_cast<Bytes>(sent.size()));
  EXPECT_EQ(copies->counts().to_host, static_cast<Bytes>(sent.size()));
}

TEST(Gpu, ArenaIsZeroFilled) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const auto arena = make_cuda_arena(kMiB, 0);
  std::vector<std::byte> received(static_cast<size_t>(kMiB), std::byte{1});
  const auto copies = make_cuda_copy_engine(0);
  CudaStream stream("d2h", 0);
  stream.enqueue({}, [&] { copies->to_host(received, arena->bytes()); });
  stream.synchronize();
  EXPECT_EQ(received, std::vector<std::byte>(received.size(), std::byte{0}));
}

// Goal: the GPU waits for the host without the host's waiting for the GPU.
TEST(Gpu, StreamWaitsForAHostEventWhileTheHostGoesOn) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const auto arena = make_cuda_arena(4096, 0);
  const auto copies = make_cuda_copy_engine(0);
  HostRegistration pinned;
  std::vector<std::byte> source(4096, std::byte{1}), received(4096);
  pinned = HostRegistration(source);
  CudaStream stream("h2d", 0);
  const auto updated = std::make_shared<HostPoint>();
  const Event waits_for(updated);
  const Event there =
      stream.enqueue({&waits_for, 1}, [&] { copies->to_device(arena->bytes(), source); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(there.done());
  std::fill(source.begin(), source.end(), std::byte{2});  // what the copy must see
  updated->reach();
  there.wait();
  stream.enqueue({}, [&] { copies->to_host(received, arena->bytes()); }).wait();
  EXPECT_EQ(received, source);
}

TEST(Gpu, HostFailureReachesEveryStreamBehindIt) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  CudaStream first("h2d", 0), second("compute", 0);
  const Event before = second.enqueue({}, [] {});
  const auto updated = std::make_shared<HostPoint>();
  const Event waits_for(updated);
  const Event fetched = first.enqueue({&waits_for, 1}, [] {});
  const Event computed = second.enqueue({&fetched, 1}, [] {});
  updated->fail("the update failed");
  EXPECT_NO_THROW(before.wait());
  EXPECT_THROW(computed.wait(), std::runtime_error);
  EXPECT_THROW(fetched.wait(), std::runtime_error);
  bool ran = false;
  const Event behind = second.enqueue({}, [&] { ran = true; });
  EXPECT_THROW(behind.wait(), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST(Gpu, WorkThatThrowsFailsItsEvent) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  CudaStream stream("compute", 0);
  const Event failed = stream.enqueue({}, [] { throw std::runtime_error("no"); });
  EXPECT_THROW(failed.wait(), std::runtime_error);
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
}

TEST(Gpu, CallsBackWhenAPointIsReached) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  CudaStream stream("compute", 0);
  std::promise<void> called;
  const auto gate = std::make_shared<HostPoint>();
  const Event waits_for(gate);
  const Event point = stream.enqueue({&waits_for, 1}, [] {});
  point.state()->on_done([&] { called.set_value(); });
  std::future<void> future = called.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  gate->reach();
  EXPECT_EQ(future.wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

// Goal: more host events than gates never deadlock, and are counted as host waits.
TEST(Gpu, ManyHostEventsReuseTheirGates) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  CudaStream stream("h2d", 0);
  for (int i = 0; i < 1000; ++i) {
    const auto point = std::make_shared<HostPoint>();
    const Event event(point);
    const Event behind = stream.enqueue({&event, 1}, [] {});
    point->reach();
    if (i % 100 == 99) behind.wait();
  }
  EXPECT_NO_THROW(stream.synchronize());
}

// Goal: LibTorch on the GPU keeps to the cap, and going over it names who held what (exit 4).
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
    EXPECT_GE(memory.usage().workspace, 64 * kMiB);
    try {
      const at::Tensor more = at::empty({100 * kMiB}, options);
      FAIL() << memory.usage().workspace;
    } catch (const OutOfMemoryError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("block.1 forward needs 100.0 MiB more"), std::string::npos) << text;
      EXPECT_NE(text.find("slot.0 128.0 MiB"), std::string::npos) << text;
    }
  }
  EXPECT_LE(memory.usage().peak(), 256 * kMiB);
}

TEST(Gpu, ArenaLargerThanTheGpuIsRefused) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  EXPECT_THROW(make_cuda_arena(cuda_devices()[0].memory_bytes * 2, 0), OutOfMemoryError);
  EXPECT_NO_THROW(make_cuda_arena(kMiB, 0)) << "the refusal is not sticky";
}

// Goal: the same matrix products and sums twice are the same bits.
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
