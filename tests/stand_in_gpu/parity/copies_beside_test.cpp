// The copies that `check machine --rates` runs beside the update that it measures, over the
// stand-in's GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/errors.h"
#include "device/cuda_device.h"
#include "tests/stand_in_gpu/stand_in.h"
#include "trainer/machine/measure_rates.h"

namespace longshore {
namespace {

constexpr Bytes kHostBytes = kMiB;

// Waits until so many bytes went each way; false when they did not in a minute.
bool copied(const CopiesBeside& copies, Bytes bytes) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < end) {
    const CopyEngine::Counts counts = copies.counts();
    if (counts.to_device >= bytes && counts.to_host >= bytes) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Goal: copies go on for as long as they are wanted, and nothing is allocated or registered beside
// them: each round did both, and the update was measured beside that.
TEST(CopiesBeside, AllocateAndRegisterOnce) {
  prepare_cuda(0);
  const int before = stand_in::registrations();
  CopiesBeside copies(0, kHostBytes);
  EXPECT_EQ(stand_in::registrations(), before + 1);
  EXPECT_TRUE(copied(copies, 10 * kHostBytes));
  copies.finish();
  const Bytes last = copies.counts().to_device;
  EXPECT_EQ(stand_in::registrations(), before + 1);
  EXPECT_EQ(copies.counts().to_device, last) << "copies after their end";
}

// Goal: a copy that fails is a measurement that failed, with a message; it ended the process.
TEST(CopiesBeside, AFailedCopyIsReported) {
  prepare_cuda(0);
  stand_in::break_part("link");
  CopiesBeside copies(0, kHostBytes);
  try {
    copies.finish();
    ADD_FAILURE() << "the copies did not fail";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the stand-in's link is broken"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kFailure);
  }
  stand_in::break_part("");
}

// Goal: a GPU that is full is told before anything is measured.
TEST(CopiesBeside, AFullGpuIsReported) {
  const std::vector<CudaDevice> gpus = cuda_devices();
  stand_in::set_gpus({{.name = "Full", .memory_bytes = kKiB}});
  EXPECT_THROW(CopiesBeside(0, kHostBytes), OutOfMemoryError);
  stand_in::set_gpus(gpus);
}

}  // namespace
}  // namespace longshore
