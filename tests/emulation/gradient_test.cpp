// The GPU's cast and squared norm, emulated on the host, give the reference's bits.
#include "kernels/gradient.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::square_blocks;

void compare(const std::vector<float>& values, bool cast) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint16_t> expected(values.size());
  const double sum = kernels::cast_and_square_cpu(values, cast ? expected.data() : nullptr);
  Operand<float> in("values", values);
  Operand<uint16_t> bf16("bf16", values.size());
  Operand<double> blocks("block_sums", static_cast<size_t>(square_blocks(count)));
  Operand<double> result("sum", 1);
  kernels::cast_and_square_cuda(in.data(), count, cast ? bf16.data() : nullptr, blocks.data(),
                                result.data(), nullptr);
  if (cast) {
    EXPECT_EQ(bf16.values(), expected) << count;
  }
  const double got = result.values()[0];
  if (sum != sum) {
    EXPECT_NE(got, got) << count;
  } else {
    EXPECT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(sum)) << count;
  }
}

// Goal: 220 lengths give the reference's bits: all tails of lanes, blocks, more blocks than lanes.
TEST(EmulatedGradient, GivesTheReferencesBits) {
  std::vector<int64_t> counts = {0, 1, 2, 3, 4095, 4096, 4097, 8191, 8192, 8193, 256 * 4096 + 1};
  for (int64_t near = 250; near < 262; ++near) counts.push_back(near);
  for (const int64_t count : random_numbers(180, 12'000, 3)) counts.push_back(count + 1);
  for (const int64_t count : random_numbers(17, 60'000, 4)) counts.push_back(count + 1);
  for (const int64_t count : counts) {
    // The values differ widely in size, so that another order of additions shows.
    auto values = random_values<float>(count, 1);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::ldexp(values[i], static_cast<int>(i * 7919 % 41) - 20);
    }
    compare(values, true);
    compare(values, false);
  }
}

// An infinity or NaN makes the sum of squares not finite.
TEST(EmulatedGradient, TellsWhatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{0}, size_t{4999}}) {
      auto values = random_values<float>(5000, 1);
      values[at] = bad;
      compare(values, true);
      compare(values, false);
    }
  }
}

}  // namespace
}  // namespace longshore::emulation
