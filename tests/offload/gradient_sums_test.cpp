// The gradient offload's sums on the device: chunks in order, and the GPU against its reference.
#include "offload/staging/gradient_drain.h"

#include <gtest/gtest.h>

#include <bit>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/cuda_device.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "kernels/gradient.h"
#include "tests/fakes/gpu.h"

namespace longshore {
namespace {

std::vector<float> some_values(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(i * 7919 % 1013 - 500) * 1e-3f);
  }
  return values;
}

// Chunks are added, and the sum restarts after it was taken.
TEST(GradientSums, AddsChunksAndStartsAnew) {
  WorkerPool pool(2);
  const auto sums = make_cpu_gradient_sums(&pool);
  const std::vector<float> values = some_values(100'000);
  std::vector<uint16_t> bf16(values.size());
  sums->add(values, {}, 0);
  const double once = sums->take();
  EXPECT_NEAR(once, kernels::cast_and_square_cpu(values, nullptr), once * 1e-12);
  sums->add(std::span(values).first(50'000), {}, 0);
  sums->add(std::span(values).last(50'000), {}, 0);
  EXPECT_NEAR(sums->take(), once, once * 1e-12);
  EXPECT_EQ(sums->take(), 0.0);
  sums->add(values, bf16, 0);
  const double narrow = sums->take();
  EXPECT_NEAR(narrow, kernels::cast_and_square_cpu(values, bf16.data()), narrow * 1e-12);
}

// A chunk beyond the limit is refused.
TEST(GradientSums, RefusesAChunkThatIsTooLong) {
  WorkerPool pool(1);
  const int64_t most = GradientSums::chunks_on(DeviceKind::kCpu).elements;
  const std::vector<float> values(static_cast<size_t>(most) + 1);
  EXPECT_THROW(make_cpu_gradient_sums(&pool)->add(values, {}, 0), CheckFailure);
}

// The GPU gives the reference's bits for each chunk.
TEST(GradientSumsGpu, GivesTheReferencesBitsChunkByChunk) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  adopt_cuda_stream(0, StreamPriority::kHigh);
  const std::vector<float> values = some_values(300'001);
  const auto bytes = std::as_bytes(std::span(values));
  const auto arena = make_cuda_arena(align_up(static_cast<Bytes>(bytes.size()) * 2, 256), 0);
  const auto copies = make_cuda_copy_engine(0);
  copies->to_device(arena->bytes().first(bytes.size()), bytes);
  const std::span on_gpu(reinterpret_cast<const float*>(arena->bytes().data()), values.size());
  const std::span bf16(reinterpret_cast<uint16_t*>(arena->bytes().data() + bytes.size() + 4),
                       values.size());
  std::vector<uint16_t> expected(values.size());
  const auto sums = make_cuda_gradient_sums(0);
  double sum = 0.0, piece = 0.0;
  constexpr size_t kChunk = 100;  // more chunks than the GPU keeps sums for
  for (size_t begin = 0; begin < values.size(); begin += kChunk) {
    const size_t count = std::min(kChunk, values.size() - begin);
    sums->add(on_gpu.subspan(begin, count), bf16.subspan(begin, count), 0);
    piece += kernels::cast_and_square_cpu(std::span(values).subspan(begin, count),
                                          expected.data() + begin);
    if (begin / kChunk % 7 == 6 || begin + count == values.size()) {
      sums->end_piece();
      sum += std::exchange(piece, 0.0);
    }
  }
  EXPECT_EQ(std::bit_cast<uint64_t>(sums->take()), std::bit_cast<uint64_t>(sum));
  std::vector<uint16_t> got(values.size());
  copies->to_host(std::as_writable_bytes(std::span(got)), std::as_bytes(bf16));
  finish_cuda_work(0, "the test");
  EXPECT_EQ(got, expected);
}

}  // namespace
}  // namespace longshore
