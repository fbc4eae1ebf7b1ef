// The host tier: exact bytes, values in and out, checked leases.
#include "pinned/pinned_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>

#include "base/errors.h"
#include "base/number_formats.h"
#include "shard/shard_store.h"
#include "tests/fakes/segment_values.h"
#include "tests/fakes/specs.h"
#include "tests/fakes/store_lanes.h"

namespace longshore {
namespace {

ModelSpec model_with_frozen() {
  ModelSpec model = fakes::make_small_model(2, true);
  model.units[1].parameters[1].frozen = true;
  for (ParamSpec& parameter : model.units[2].parameters) parameter.frozen = true;
  return model;
}

std::vector<StateOptions> all_options() {
  std::vector<StateOptions> all;
  for (const StateFormatTraits& traits : kStateFormats) {
    for (DType compute : {DType::kF32, DType::kBF16})
      all.push_back({traits.format, compute, compute});
  }
  return all;
}

std::vector<float> ramp(int64_t count, float first) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  for (float& value : values) value *= 1.0009765625f;  // needs the low half of the master
  return values;
}

// The store owns exactly the planned bytes.
TEST(PinnedStore, OwnsExactlyThePlannedBytes) {
  const ModelSpec model = model_with_frozen();
  WorkerPool pool(2);
  for (int factor : {1, 4}) {
    for (const StateOptions& options : all_options()) {
      const std::vector<FlatLayout> layouts = make_layouts(model, factor, options.compute);
      const PinnedStore store(layouts, options, false, &pool);
      Bytes slabs = 0;
      for (const FlatLayout& layout : layouts) slabs += SlabLayout(layout, options).slab_bytes();
      EXPECT_EQ(store.host_bytes(), PinnedStore::planned_bytes(layouts, options));
      EXPECT_EQ(store.host_bytes() - slabs, PinnedStore::planned_join_bytes(layouts, options));
      EXPECT_EQ(store.host_bytes() > slabs, needs_join(options));
    }
  }
}

// The device gets the parameters that were written, in every state format.
TEST(PinnedStore, GivesTheDeviceTheParametersThatWereWritten) {
  const ModelSpec model = model_with_frozen();
  WorkerPool pool(2);
  for (const StateOptions& options : all_options()) {
    const std::vector<FlatLayout> layouts = make_layouts(model, 1, options.compute);
    PinnedStore store(layouts, options, false, &pool);
    for (size_t u = 0; u < layouts.size(); ++u) {
      const UnitId unit(static_cast<int32_t>(u));
      std::vector<float> expected;
      {
        const auto state = store.state(unit);
        for (Segment segment : kSegments) {
          const std::vector<float> values =
              ramp(fakes::values_in_shard(layouts[u], segment), 1.0f + static_cast<float>(u));
          fakes::write_segment(state->segment(segment), options.compute, 0, values);
          expected.insert(expected.end(), values.begin(), values.end());
        }
      }
      const auto lease = store.parameters(unit);
      ASSERT_EQ(lease->bytes().size(),
                expected.size() * static_cast<size_t>(width_of(options.compute)));
      for (size_t i = 0; i < expected.size(); ++i) {
        if (options.compute == DType::kF32) {
          ASSERT_EQ(reinterpret_cast<const float*>(lease->bytes().data())[i], expected[i]);
        } else {
          ASSERT_EQ(reinterpret_cast<const uint16_t*>(lease->bytes().data())[i],
                    master_high(expected[i]));
        }
      }
    }
  }
}

// Goal: masters of a unit with several blocks of 2^18 elements are joined.
TEST(PinnedStore, JoinsMastersOfSeveralBlocks) {
  ModelSpec model = fakes::make_small_model(1, false);
  model.units[1].parameters.push_back(fakes::make_parameter("block.0.wide", {1031, 601}));
  WorkerPool pool(2);
  for (const StateOptions& options : all_options()) {
    const std::vector<FlatLayout> layouts = make_layouts(model, 1, options.compute);
    PinnedStore store(layouts, options, false, &pool);
    const int64_t elements = layouts[1].shard_elements(Segment::kQuantisedMoments);
    ASSERT_GT(elements, int64_t{2} << 18);
    const std::vector<float> values = ramp(elements, 3.0f);
    write_values(store.state(UnitId(1))->segment(Segment::kQuantisedMoments), 0, values);
    const auto lease = store.parameters(UnitId(1));
    size_t different = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      different += options.compute == DType::kF32
                       ? reinterpret_cast<const float*>(lease->bytes().data())[i] != values[i]
                       : reinterpret_cast<const uint16_t*>(lease->bytes().data())[i] !=
                             master_high(values[i]);
    }
    EXPECT_EQ(different, 0u) << name_of(options.format);
  }
}

// Units do not overlap.
TEST(PinnedStore, KeepsUnitsApart) {
  const ModelSpec model = model_with_frozen();
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  WorkerPool pool(1);
  PinnedStore store(layouts, {}, false, &pool);
  for (size_t u = 0; u < layouts.size(); ++u) {
    const auto state = store.state(UnitId(static_cast<int32_t>(u)));
    for (Segment segment : kSegments) {
      const StateSpans spans = state->segment(segment);
      for (std::span<uint16_t> half : {spans.high, spans.low}) {
        for (uint16_t& value : half) {
          ASSERT_EQ(value, 0) << "unit " << u << " overlaps an earlier one";
          value = static_cast<uint16_t>(u + 1);
        }
      }
      for (std::byte& byte : spans.frozen) {
        ASSERT_EQ(byte, std::byte{0}) << "unit " << u << " overlaps an earlier one";
        byte = static_cast<std::byte>(u + 1);
      }
    }
  }
}

// A unit's state is leased once, and not while its parameters are.
TEST(PinnedStore, LeasesAUnitsStateOnceAndNotBesideItsParameters) {
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(1, false), 1, DType::kBF16);
  WorkerPool pool(1);
  PinnedStore store(layouts, {}, false, &pool);
  {
    const auto state = store.state(UnitId(1));
    EXPECT_THROW(store.state(UnitId(1)), CheckFailure);
    EXPECT_THROW(store.parameters(UnitId(1)), CheckFailure);
    EXPECT_NO_THROW(store.state(UnitId(0)));
  }
  const auto first = store.parameters(UnitId(1));
  const auto second = store.parameters(UnitId(1));
  EXPECT_THROW(store.state(UnitId(1)), CheckFailure);
  EXPECT_THROW(store.parameters(UnitId(9)), CheckFailure);
}

// The join region belongs to one lease at a time.
TEST(PinnedStore, LendsTheJoinRegionToOneLeaseAtATime) {
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(1, false), 1, DType::kF32);
  WorkerPool pool(1);
  PinnedStore store(layouts, {StateFormat::kSplit, DType::kF32, DType::kF32}, false, &pool);
  {
    const auto lease = store.parameters(UnitId(0));
    EXPECT_THROW(store.parameters(UnitId(1)), CheckFailure);
  }
  EXPECT_NO_THROW(store.parameters(UnitId(1)));
}

// An arena is zero and reports its size, registration and huge pages.
TEST(PinnedArena, IsZeroFilledAndTellsWhatItGot) {
  WorkerPool pool(2);
  const PinnedArena arena(130 * kMiB + 4096, false, pool);
  EXPECT_EQ(arena.size_bytes(), 130 * kMiB + 4096);
  EXPECT_FALSE(arena.registered());
  EXPECT_GE(arena.huge_page_bytes(), 0);
  EXPECT_LE(arena.huge_page_bytes(), 130 * kMiB);
  EXPECT_EQ(arena.bytes().back(), std::byte{0});
}

// An arena that the system refuses gives an OutOfMemoryError.
TEST(PinnedArena, SaysSoWhenTheSystemRefuses) {
  WorkerPool pool(1);
  EXPECT_THROW(PinnedArena(Bytes{1} << 60, false, pool), OutOfMemoryError);
}

// Every block runs once on any number of threads.
TEST(WorkerPool, RunsEveryBlockOnceOnAnyNumberOfThreads) {
  for (int threads : {1, 2, 4, 7}) {
    WorkerPool pool(threads);
    std::vector<std::atomic<int>> counts(1000);
    pool.for_each_block(1000, [&](int64_t i) { ++counts[static_cast<size_t>(i)]; });
    for (const auto& count : counts) ASSERT_EQ(count, 1);
    pool.for_each_block(0, [](int64_t) { FAIL(); });
  }
}

// The exception of a block reaches the caller.
TEST(WorkerPool, HandsTheExceptionOfABlockToItsOwner) {
  for (int threads : {1, 3}) {
    WorkerPool pool(threads);
    const auto fail = [](int64_t i) {
      if (i == 17) throw OutOfMemoryError("block 17");
    };
    EXPECT_THROW(pool.for_each_block(100, fail), OutOfMemoryError);
    EXPECT_NO_THROW(pool.for_each_block(10, fail)) << "the pool works on";
  }
}

// Goal: lanes use different units concurrently, and every lane gets the bytes of its step.
TEST(PinnedStore, ServesItsLanesAtOnce) {
  WorkerPool pool(2);
  for (const StateOptions& options : all_options()) {
    const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, options.compute);
    PinnedStore store(layouts, options, false, &pool);
    for (size_t u = 0; u < layouts.size(); ++u) {
      fakes::write_unit(store, layouts[u], UnitId(static_cast<int32_t>(u)), 0);
    }
    EXPECT_EQ(fakes::run_lanes(store, layouts, 5, [](int64_t) {}), "");
  }
}

}  // namespace
}  // namespace longshore
