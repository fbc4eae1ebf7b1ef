// The gradient offload's cast and sum of squares: a fixed order, and the same bits on a GPU.
#include "kernels/gradient.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/number_formats.h"
#include "base/random.h"
#include "device/copy_engine.h"
#include "device/cuda_device.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "tests/fakes/gpu.h"
#include "tests/kernels/instruction_sets.h"

namespace longshore::kernels {
namespace {

// Returns values of widely different sizes, so that another order of additions shows.
std::vector<float> values_of(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {17, 4});
    const double magnitude = std::ldexp(1.0, static_cast<int>(bits[1] % 40) - 20);
    values.push_back(static_cast<float>((bits[0] / 4294967296.0 - 0.5) * magnitude));
  }
  return values;
}

// The cast rounds to nearest, and the squares of the rounded values are summed.
TEST(Gradient, CastsToNearestAndSumsWhatIsKept) {
  for (const int64_t count : {0, 1, 255, 256, 4095, 4096, 4097, 100'000}) {
    const std::vector<float> values = values_of(count);
    std::vector<uint16_t> bf16(values.size());
    const double sum = cast_and_square_cpu(values, bf16.data());
    double plain = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(bf16[i], float_to_bf16_nearest(values[i]));
      plain += std::pow(static_cast<double>(bf16_to_float(bf16[i])), 2);
    }
    EXPECT_NEAR(sum, plain, plain * 1e-12) << count;
    plain = 0.0;
    for (const float value : values) plain += static_cast<double>(value) * value;
    EXPECT_NEAR(cast_and_square_cpu(values, nullptr), plain, plain * 1e-12) << count;
  }
}

// Goal: squares are added by lane and then in a tree, so that the GPU can give the same bits.
TEST(Gradient, AddsLanesInOrderAndThenATree) {
  std::vector<float> values(static_cast<size_t>(kSquareBlock) + 1, 0.0f);
  const float big = 1e8f, small = 1.0f;
  values[0] = big;                                    // lane 0 of block 0
  values[static_cast<size_t>(kSquareLanes)] = small;  // the same lane: lost against 1e16
  values[1] = small;                                  // another lane
  values[static_cast<size_t>(kSquareBlock)] = small;  // lane 0 of block 1
  const double lost = 1e16 + 1.0;
  EXPECT_EQ(cast_and_square_cpu(values, nullptr), (lost + 1.0) + 1.0);
  EXPECT_EQ(lost, 1e16);
}

// Sums as the header defines it, in plain loops.
double plain_sum(const std::vector<float>& values) {
  const auto tree = [](std::vector<double> lanes) {
    for (size_t width = lanes.size() / 2; width > 0; width /= 2) {
      for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    return lanes[0];
  };
  std::vector<double> of_blocks(static_cast<size_t>(kSquareLanes), 0.0);
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(kSquareBlock)) {
    std::vector<double> lanes(static_cast<size_t>(kSquareLanes), 0.0);
    const size_t end = std::min(values.size(), begin + static_cast<size_t>(kSquareBlock));
    for (size_t i = begin; i < end; ++i) {
      lanes[i % lanes.size()] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    of_blocks[begin / static_cast<size_t>(kSquareBlock) % of_blocks.size()] += tree(lanes);
  }
  return tree(of_blocks);
}

// Goal: cast and sum have the bits of plain loops on every instruction set and at every length.
TEST(Gradient, HasTheSameBitsOnEveryInstructionSet) {
  for (int64_t count = 0; count <= 9000; count += count < 70 ? 1 : 671) {
    const std::vector<float> values = values_of(count);
    std::vector<float> kept;
    for (const float value : values) kept.push_back(bf16_to_float(float_to_bf16_nearest(value)));
    on_each_target([&](int64_t target) {
      std::vector<uint16_t> bf16(values.size());
      ASSERT_EQ(cast_and_square_cpu(values, nullptr), plain_sum(values)) << target;
      ASSERT_EQ(cast_and_square_cpu(values, bf16.data()), plain_sum(kept)) << target;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(bf16[i], float_to_bf16_nearest(values[i])) << target;
      }
    });
  }
}

// Ties, overflow and NaN round like the scalar cast.
TEST(Gradient, RoundsTiesOverflowAndNanAsTheScalarCastDoes) {
  std::vector<float> values;
  for (const uint32_t bits : {0x3f808000u, 0x3f818000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u,
                              0x7f800001u, 0xffffffffu, 0x00000001u, 0x80000000u}) {
    values.insert(values.end(), 7, std::bit_cast<float>(bits));
  }
  on_each_target([&](int64_t target) {
    std::vector<uint16_t> bf16(values.size());
    cast_and_square_cpu(values, bf16.data());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(bf16[i], float_to_bf16_nearest(values[i])) << i << " " << target;
    }
  });
}

// An infinity or NaN makes the sum of squares not finite.
TEST(Gradient, TellsWhatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = values_of(5000);
    values[4999] = bad;
    std::vector<uint16_t> bf16(values.size());
    EXPECT_FALSE(std::isfinite(cast_and_square_cpu(values, bf16.data())));
    EXPECT_FALSE(std::isfinite(cast_and_square_cpu(values, nullptr)));
  }
}

// OnGpu: a GPU's memory for kernel operands; the test's thread issues work to a stream of its own.
class OnGpu {
 public:
  explicit OnGpu(int64_t bytes)
      : arena_(make_cuda_arena(align_up(bytes, 256), 0)), copies_(make_cuda_copy_engine(0)) {
    adopt_cuda_stream(0, StreamPriority::kNormal);
  }
  template <typename T>
  T* place(int64_t count, const T* from = nullptr) {
    const auto bytes = static_cast<size_t>(count) * sizeof(T);
    const auto span = arena_->bytes().subspan(used_, bytes);
    used_ += (bytes + 255) / 256 * 256;
    if (from != nullptr) {
      const auto source = std::as_bytes(std::span(from, static_cast<size_t>(count)));
      copies_->to_device(span, source);
      copies_->finish();
    }
    return reinterpret_cast<T*>(span.data());
  }
  template <typename T>
  std::vector<T> read(const T* from, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    copies_->to_host(std::as_writable_bytes(std::span(values)),
                     std::as_bytes(std::span(from, values.size())));
    copies_->finish();
    return values;
  }

  CUstream_st* stream() const { return current_cuda_stream(0); }

 private:
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<CopyEngine> copies_;
  size_t used_ = 0;
};

// The GPU's cast and sum of squares give the reference's bits.
TEST(GradientGpu, GivesTheReferencesBits) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  for (const int64_t count : {1, 4096, 4097, 1'000'003}) {
    const std::vector<float> values = values_of(count);
    std::vector<uint16_t> expected(values.size());
    const double sum = cast_and_square_cpu(values, expected.data());
    OnGpu gpu(count * 8 + 8 * square_blocks(count) + 4096);
    const float* in = gpu.place<float>(count, values.data());
    auto* bf16 = gpu.place<uint16_t>(count);
    auto* blocks = gpu.place<double>(square_blocks(count));
    auto* result = gpu.place<double>(1);
    cast_and_square_cuda(in, count, bf16, blocks, result, gpu.stream());
    EXPECT_EQ(gpu.read(bf16, count), expected) << count;
    EXPECT_EQ(std::bit_cast<uint64_t>(gpu.read(result, 1)[0]), std::bit_cast<uint64_t>(sum));
    cast_and_square_cuda(in, count, nullptr, blocks, result, gpu.stream());
    EXPECT_EQ(gpu.read(result, 1)[0], cast_and_square_cpu(values, nullptr)) << count;
  }
}

}  // namespace
}  // namespace longshore::kernels
