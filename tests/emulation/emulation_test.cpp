// The emulation finds faulty kernels: in builds without sanitizers by its own checker, under
// AddressSanitizer and ThreadSanitizer by theirs, which end the process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "kernels/cross_entropy.h"
#include "kernels/gradient.h"
#include "kernels/norm.h"
#include "tests/emulation/emulated_grid.h"
#include "tests/emulation/faulty_kernels.h"
#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"
#include "tests/fakes/test_files.h"

namespace longshore::emulation {
namespace {

using Launch = std::function<void()>;

// Returns the fault that a launch ended with; empty without a fault.
std::string fault_of(const Launch& launch) {
  try {
    launch();
  } catch (const KernelFault& fault) {
    return fault.what();
  }
  return {};
}

std::vector<int> numbers(int count) {
  std::vector<int> values;
  for (int i = 0; i < count; ++i) values.push_back(i);
  return values;
}

// Blocks of threads run with barriers and give the right values.
TEST(Emulation, RunsBlocksOfThreadsWithBarriers) {
  Operand<int> values("values", numbers(64));
  reverse_64(values.data(), true);
  std::vector<int> expected = numbers(64);
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(values.values(), expected);
}

// Threads that wait for others that have ended are reported.
TEST(Emulation, TellsOfThreadsThatWaitForOthersThatEnded) {
  EXPECT_NE(fault_of(end_before_a_barrier).find("waits at a barrier"), std::string::npos);
  EXPECT_NE(fault_of(end_before_an_exchange).find("do not all come to an exchange"),
            std::string::npos);
}

// Goal: every file of kernels has a test in this folder.
TEST(Emulation, HasATestForEveryFileOfKernels) {
  const std::filesystem::path tests = test_data();
  int found = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(tests.parent_path() / "src/kernels")) {
    if (file.path().extension() != ".cu") continue;
    ++found;
    const std::string name = file.path().stem().string() + "_test.cpp";
    EXPECT_TRUE(std::filesystem::exists(tests / "emulation" / name)) << name;
  }
  EXPECT_GE(found, 6);
}

#if defined(__SANITIZE_ADDRESS__)

// AddressSanitizer finds an access beyond an operand.
TEST(EmulationDeathTest, AddressSanitizerSeesAccessesBeyondAnOperand) {
  Operand<int> values("values", numbers(100)), sum("sum", 1);
  EXPECT_DEATH(sum_one_too_many(values.data(), 100, sum.data()), "heap-buffer-overflow");
}

#elif defined(__SANITIZE_THREAD__)

// Runs a launch and exits; ThreadSanitizer's reports make the exit code 66.
void exit_after(const Launch& launch) {
  launch();
  std::exit(0);
}

// ThreadSanitizer finds a missing barrier.
TEST(EmulationDeathTest, ThreadSanitizerSeesAMissingBarrier) {
  Operand<int> values("values", numbers(64));
  EXPECT_EXIT(exit_after([&] { reverse_64(values.data(), true); }), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_after([&] { reverse_64(values.data(), false); }), testing::ExitedWithCode(66),
              "data race");
}

#else

// A missing barrier is reported with block, thread and memory.
TEST(Emulation, FindsAMissingBarrier) {
  Operand<int> values("values", numbers(64));
  // The first warp runs ahead and reads the half that the second one has not written.
  EXPECT_EQ(fault_of([&] { reverse_64(values.data(), false); }).substr(0, 37),
            "block 0, thread 0 reads shared memory");
}

// Two blocks that write one address without order are reported.
TEST(Emulation, FindsBlocksThatShareAPlace) {
  Operand<int> number("number", 1);
  EXPECT_EQ(fault_of([&] { write_one_place_from_two_blocks(number.data()); }),
            "block 1, thread 0 writes number + 0, written without a barrier between by thread 0 of "
            "block 0");
}

// Accesses beyond an operand and misaligned accesses are reported.
TEST(Emulation, FindsAccessesBeyondAnOperandAndMisaligned) {
  Operand<int> values("values", numbers(100)), sum("sum", 1);
  EXPECT_EQ(fault_of([&] { sum_one_too_many(values.data(), 100, sum.data()); }),
            "block 0, thread 36 reads 4 bytes beyond every operand");
  Operand<int> to("to", 8);
  EXPECT_EQ(fault_of([&] { copy_16_bytes(to.data(), values.data() + 4); }), "");
  EXPECT_NE(fault_of([&] { copy_16_bytes(to.data(), values.data() + 1); }).find("misaligned"),
            std::string::npos);
}

// Reads of bytes that no thread has written are reported.
TEST(Emulation, FindsReadsOfWhatNobodyWrote) {
  Operand<int> pair("pair", 2), result("result", 1);
  EXPECT_EQ(fault_of([&] { read_another_blocks_shared_memory(pair.data()); }).substr(0, 37),
            "block 1, thread 0 reads shared memory");
  EXPECT_EQ(fault_of([&] { add_to_result(result.data()); }),
            "block 0, thread 0 reads result + 0, which nobody has written");
}

// Returns the numbers, from 1, of the barriers whose absence is a fault.
std::vector<unsigned> needed_barriers(const Launch& launch) {
  launch();
  std::vector<unsigned> needed;
  for (unsigned nth = 1, all = barriers_of_last_launch(); nth <= all; ++nth) {
    leave_out_barrier(nth);
    if (!fault_of(launch).empty()) needed.push_back(nth);
    leave_out_barrier(0);
  }
  return needed;
}

// Goal: every barrier of the kernels that orders something is missed when it is left out. The first
// barrier of over_block() orders nothing in its first call with a combination, because no thread
// reads yet. Rows span several warps.
TEST(Emulation, MissesTheKernelsBarriers) {
  Operand<float> logits("logits", random_values<float>(1200, 1)), losses("losses", 1);
  Operand<int64_t> targets("targets", std::vector<int64_t>{7});
  EXPECT_EQ(needed_barriers([&] {
              kernels::cross_entropy_cuda({DType::kF32, 1, 1200, 1.0, true}, logits.data(),
                                          targets.data(), losses.data(), nullptr);
            }),
            (std::vector<unsigned>{2, 4}));
  Operand<float> statistics("statistics", 2);
  kernels::CrossEntropy shape{DType::kF32, 1, 1200, 1.0, true};
  shape.statistics = statistics.data();
  EXPECT_EQ(needed_barriers([&] {
              kernels::cross_entropy_cuda(shape, logits.data(), targets.data(), losses.data(),
                                          nullptr);
            }),
            (std::vector<unsigned>{2, 4, 5, 6, 8}));

  Operand<float> grad("grad", random_values<float>(1200, 1)), x("x", random_values<float>(1200, 2));
  Operand<float> weight("weight", random_values<float>(1200, 3)), grad_x("grad_x", 1200);
  EXPECT_EQ(needed_barriers([&] {
              kernels::norm_backward_cuda({DType::kF32, 1, 1200, 1e-5}, grad.data(), x.data(),
                                          weight.data(), grad_x.data(), nullptr, nullptr, nullptr,
                                          nullptr);
            }),
            (std::vector<unsigned>{2, 3, 4}));

  Operand<double> blocks("block_sums", 1), sum("sum", 1);
  EXPECT_EQ(needed_barriers([&] {
              kernels::cast_and_square_cuda(x.data(), 300, nullptr, blocks.data(), sum.data(),
                                            nullptr);
            }),
            (std::vector<unsigned>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

#endif

}  // namespace
}  // namespace longshore::emulation
