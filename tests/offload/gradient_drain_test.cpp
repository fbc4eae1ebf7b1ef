// The gradient offload: the values in host memory, and a norm that depends on the values alone.
#include "offload/staging/gradient_drain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/errors.h"
#include "base/number_formats.h"
#include "device/cuda_device.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "kernels/gradient.h"
#include "tests/fakes/gpu.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

ModelSpec make_model() {
  ModelSpec model = fakes::make_small_model(2, false);
  model.units[1].parameters[1].frozen = true;
  // The matrix is longer than one chunk of the offload.
  model.units[2].parameters.push_back(fakes::make_parameter("block.1.wide", {1031, 1031}));
  return model;
}

struct Fixture {
  ModelSpec model = make_model();
  std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  WorkerPool pool;
  HostGradients host;
  CpuCopyEngine copies;
  std::vector<std::byte> staging;
  GradientDrain drain;

  explicit Fixture(DType dtype, int threads = 1)
      : pool(threads),
        host(layouts, {.dtype = dtype}, false, pool),
        staging(static_cast<size_t>(
            GradientDrain::planned_staging_bytes(layouts, dtype, DeviceKind::kCpu))),
        drain(&host, &copies, layouts, Rank(0), staging, &pool) {}

  // Padding is NaN, so that reading it shows.
  std::vector<float> gradient(size_t unit) const {
    std::vector<float> values(static_cast<size_t>(layouts[unit].trainable_elements()),
                              std::numeric_limits<float>::quiet_NaN());
    std::mt19937 random(static_cast<uint32_t>(unit));
    std::normal_distribution<float> normal(0.0f, 0.1f);
    for (const ShardPiece& piece : layouts[unit].trained_pieces(Rank(0))) {
      const int64_t begin = layouts[unit].parameter(piece.parameter).begin;
      for (int64_t i = 0; i < piece.elements; ++i) {
        values[static_cast<size_t>(begin + i)] = normal(random);
      }
    }
    return values;
  }
  void drain_all() {
    for (size_t i = layouts.size(); i-- > 0;)
      drain.drain(UnitId(static_cast<int32_t>(i)), gradient(i));
  }
};

float kept(DType dtype, float value) {
  return dtype == DType::kF32 ? value : bf16_to_float(float_to_bf16_nearest(value));
}

// Every value reaches host memory in the drain dtype, and padding is zero.
TEST(GradientDrain, BringsEveryValueHomeInTheDrainDtypeAndLeavesPaddingZero) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Fixture f(dtype, 2);
    f.drain_all();
    for (size_t u = 0; u < f.layouts.size(); ++u) {
      const std::vector<float> sent = f.gradient(u);
      const std::span<std::byte> host = f.host.gradient(UnitId(static_cast<int32_t>(u)));
      for (size_t i = 0; i < sent.size(); ++i) {
        float got = 0.0f;
        if (dtype == DType::kF32) {
          std::memcpy(&got, host.data() + i * 4, 4);
        } else {
          uint16_t bits = 0;
          std::memcpy(&bits, host.data() + i * 2, 2);
          got = bf16_to_float(bits);
        }
        ASSERT_EQ(got, std::isnan(sent[i]) ? 0.0f : kept(dtype, sent[i])) << u << " " << i;
      }
    }
    EXPECT_EQ(f.copies.counts().to_host, f.model.trainable_elements() * width_of(dtype));
  }
}

// The norm is that of the values after the cast.
TEST(GradientDrain, SumsTheNormOfWhatWasKept) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Fixture f(dtype);
    f.drain_all();
    const GradNorm norm = norm_of(f.drain.finish());
    long double squares = 0.0L;
    for (size_t u = 0; u < f.layouts.size(); ++u) {
      for (float value : f.gradient(u)) {
        if (std::isnan(value)) continue;
        const long double k = kept(dtype, value);
        squares += k * k;
      }
    }
    EXPECT_TRUE(norm.finite);
    // Sums of positive doubles keep the error far below one part in 1e12.
    EXPECT_NEAR(norm.norm / static_cast<double>(std::sqrt(squares)), 1.0, 1e-12);
  }
}

// The norm is the same on any number of threads and in any order of units.
TEST(GradientDrain, GivesTheSameNormOnAnyNumberOfThreadsAndInAnyOrder) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Fixture one(dtype);
    one.drain_all();
    const double norm = norm_of(one.drain.finish()).norm;
    for (int threads : {2, 4}) {
      Fixture many(dtype, threads);
      for (size_t i = 0; i < many.layouts.size(); ++i) {
        many.drain.drain(UnitId(static_cast<int32_t>(i)), many.gradient(i));
      }
      EXPECT_EQ(norm_of(many.drain.finish()).norm, norm);
    }
  }
}

// The first unit with a NaN or infinity is named, and the next step starts clean.
TEST(GradientDrain, FindsTheFirstUnitWithANonFiniteValueAndBeginsAnew) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Fixture f(dtype);
      for (size_t u : {size_t{2}, size_t{1}, size_t{0}}) {
        std::vector<float> values = f.gradient(u);
        if (u > 0) values[5] = bad;
        f.drain.drain(UnitId(static_cast<int32_t>(u)), values);
      }
      const GradNorm norm = norm_of(f.drain.finish());
      EXPECT_FALSE(norm.finite);
      EXPECT_EQ(norm.first_non_finite, UnitId(1));
      f.drain.drain(UnitId(1), f.gradient(1));
      EXPECT_TRUE(norm_of(f.drain.finish()).finite);
    }
  }
}

// The largest finite values count as finite.
TEST(GradientDrain, TakesTheLargestFiniteValuesAsFinite) {
  Fixture f(DType::kF32);
  std::vector<float> values = f.gradient(0);
  values[0] = values[1] = std::numeric_limits<float>::max();
  f.drain.drain(UnitId(0), values);
  const GradNorm norm = norm_of(f.drain.finish());
  EXPECT_TRUE(norm.finite);
  EXPECT_GT(norm.norm, 4e38);
}

// Each rank offloads its own part, and the parts together are the whole.
TEST(GradientDrain, EachRankTakesItsOwnPart) {
  Fixture whole(DType::kBF16);
  whole.drain_all();
  const double norm = norm_of(whole.drain.finish()).norm;
  constexpr int32_t kRanks = 3;
  const std::vector<FlatLayout> layouts = make_layouts(whole.model, kRanks, DType::kBF16);
  std::vector<double> squares(layouts.size(), 0.0);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    HostGradients gradients(layouts, {.dtype = DType::kBF16}, false, whole.pool);
    std::vector<std::byte> staging(static_cast<size_t>(
        GradientDrain::planned_staging_bytes(layouts, DType::kBF16, DeviceKind::kCpu)));
    GradientDrain drain(&gradients, &whole.copies, layouts, Rank(rank), staging, &whole.pool);
    for (size_t u = 0; u < layouts.size(); ++u) {
      const UnitId unit(static_cast<int32_t>(u));
      std::vector<float> sums(static_cast<size_t>(layouts[u].trainable_elements()),
                              std::numeric_limits<float>::quiet_NaN());
      const std::vector<float> values = whole.gradient(u);
      for (int32_t i = 0; i < layouts[u].parameter_count(); ++i) {
        if (whole.layouts[u].parameter_segment(i) == Segment::kFrozen) continue;
        const ElementRange from = whole.layouts[u].parameter(i);
        std::copy_n(values.begin() + from.begin, from.elements,
                    sums.begin() + layouts[u].parameter(i).begin);
      }
      drain.drain(unit, sums);
      for (const ShardPiece& piece : layouts[u].trained_pieces(Rank(rank))) {
        const int64_t host = (piece.segment == Segment::kFullMoments
                                  ? layouts[u].shard_elements(Segment::kQuantisedMoments)
                                  : 0) +
                             piece.shard_begin;
        uint16_t bits = 0;
        std::memcpy(&bits, gradients.gradient(unit).data() + host * 2, 2);
        const float sent = sums[static_cast<size_t>(layouts[u].parameter(piece.parameter).begin +
                                                    piece.parameter_begin)];
        EXPECT_EQ(bf16_to_float(bits), kept(DType::kBF16, sent));
      }
    }
    const std::vector<double> own = drain.finish();
    for (size_t u = 0; u < own.size(); ++u) squares[u] += own[u];
  }
  EXPECT_NEAR(norm_of(squares).norm / norm, 1.0, 1e-12);
}

// Goal: chunks that use a GPU's staging buffers in rotation all reach host memory, and the norm is
// the reference's over the same chunks. The stand-in for GPUs casts before pending copies, so a
// buffer that is overwritten early is detected.
TEST(GradientDrainGpu, CastsOneBufferWhileTheOtherIsCopied) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  adopt_cuda_stream(0, StreamPriority::kHigh);
  constexpr int64_t kRows = 4200, kColumns = 8192;  // four chunks and a part of one
  ModelSpec model = fakes::make_small_model(1, false);
  model.units[1].parameters.push_back(fakes::make_parameter("block.0.wide", {kRows, kColumns}));
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  const FlatLayout& layout = layouts[1];
  std::vector<float> values(static_cast<size_t>(layout.trainable_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7919 % 10007) * 1e-4f - 0.5f;
  }
  const auto bytes = std::as_bytes(std::span(values));
  const Bytes staging =
      GradientDrain::planned_staging_bytes(layouts, DType::kBF16, DeviceKind::kCuda);
  const auto arena = make_cuda_arena(align_up(static_cast<Bytes>(bytes.size()), 256) + staging, 0);
  const auto copies = make_cuda_copy_engine(0);
  copies->to_device(arena->bytes().first(bytes.size()), bytes);
  const std::span on_gpu(reinterpret_cast<const float*>(arena->bytes().data()), values.size());

  WorkerPool pool(2);
  HostGradients host(layouts, {.dtype = DType::kBF16}, true, pool);
  GradientDrain drain(&host, copies.get(), layouts, Rank(0),
                      arena->bytes().last(static_cast<size_t>(staging)), DeviceKind::kCuda,
                      make_cuda_gradient_sums(0));
  const double got = drain.drain(UnitId(1), on_gpu);
  finish_cuda_work(0, "the test");

  const int64_t chunk = GradientSums::chunks_on(DeviceKind::kCuda).elements;
  double expected = 0.0;
  int64_t wrong = 0;
  for (const ShardPiece& piece : layout.trained_pieces(Rank(0))) {
    double squares = 0.0;
    for (int64_t done = 0; done < piece.elements; done += chunk) {
      const auto count = static_cast<size_t>(std::min(chunk, piece.elements - done));
      const auto begin = layout.shard(piece.segment, Rank(0)).begin + piece.shard_begin + done;
      const int64_t place = (piece.segment == Segment::kFullMoments
                                 ? layout.shard_elements(Segment::kQuantisedMoments)
                                 : 0) +
                            piece.shard_begin + done;
      std::vector<uint16_t> kept(count);
      squares += kernels::cast_and_square_cpu(
          std::span(values).subspan(static_cast<size_t>(begin), count), kept.data());
      wrong +=
          std::memcmp(kept.data(), host.gradient(UnitId(1)).data() + place * 2, count * 2) != 0;
    }
    expected += squares;
  }
  EXPECT_EQ(wrong, 0) << "chunks differ";
  EXPECT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(expected));
}

// A unit offloaded twice or with another length is refused.
TEST(GradientDrain, RefusesAUnitTwiceOrWithAnotherLength) {
  Fixture f(DType::kBF16);
  const std::vector<float> values = f.gradient(1);
  EXPECT_THROW(f.drain.drain(UnitId(1), std::span(values).first(10)), CheckFailure);
  f.drain.drain(UnitId(1), values);
  EXPECT_THROW(f.drain.drain(UnitId(1), values), CheckFailure);
  EXPECT_THROW(f.drain.drain(UnitId(99), values), CheckFailure);
}

// Goal: a GPU's gradient offload casts into one buffer of 16 MiB while another one is copied.
TEST(DrainStaging, HasTwoLargeBuffersOnAGpu) {
  ModelSpec model = fakes::make_small_model(1, false);
  model.units[1].parameters.push_back(fakes::make_parameter("block.0.wide", {4096, 2304}));
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  const auto bytes = [&](DType drain, DeviceKind device) {
    return GradientDrain::planned_staging_bytes(layouts, drain, device);
  };
  EXPECT_EQ(bytes(DType::kBF16, DeviceKind::kCuda), 2 * 16 * kMiB);
  EXPECT_EQ(bytes(DType::kBF16, DeviceKind::kCpu), 2 * kMiB);
  EXPECT_EQ(bytes(DType::kF32, DeviceKind::kCuda), 0);
  EXPECT_EQ(bytes(DType::kF32, DeviceKind::kCpu), 0);
}

}  // namespace
}  // namespace longshore
