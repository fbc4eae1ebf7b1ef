// The update of whole units in host memory: the same bits on any number of threads and ranks, each
// unit once, padding and frozen parameters unchanged.
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/optimizer/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/errors.h"
#include "base/hash.h"
#include "base/number_formats.h"
#include "base/random.h"
#include "pinned/pinned_store.h"
#include "shard/shard_store.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

constexpr AdamWOptions kOptions = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

// One block is frozen, and one matrix of another block; one matrix is longer than two tiles.
ModelSpec make_model() {
  ModelSpec model = fakes::make_small_model(3, true);
  for (ParamSpec& parameter : model.units[2].parameters) parameter.frozen = true;
  model.units[1].parameters[2].frozen = true;
  model.units[3].parameters.push_back(fakes::make_parameter("block.2.wide", {1031, 83}));
  return model;
}

// Returns a small value that depends on parameter, element and update only.
float value_of(const std::string& parameter, int64_t element, int64_t update) {
  const auto key = static_cast<uint32_t>(std::hash<std::string>()(parameter));
  const uint32_t bits = philox4x32(
      {static_cast<uint32_t>(element), static_cast<uint32_t>(update), 0, 0}, {key, 0})[0];
  return (static_cast<float>(bits >> 8) / 8388608.0f - 1.0f) * 0.05f;
}

// HostShards: a rank's store and pipeline, filled by coordinates of whole parameters.
struct HostShards {
  ModelSpec model = make_model();
  std::vector<FlatLayout> layouts;
  Rank rank;
  WorkerPool pool;
  PinnedStore store;
  HostGradients gradients;
  OptimizerPipeline pipeline;

  HostShards(const StateOptions& options, int threads, int32_t ranks = 1, Rank r = Rank(0))
      : layouts(make_layouts(model, ranks, options.compute)),
        rank(r),
        pool(threads),
        store(layouts, options, false, &pool),
        gradients(layouts, {.dtype = options.drain}, false, pool),
        pipeline(&store, &gradients, layouts, model, rank, std::make_unique<AdamWRule>(kOptions),
                 &pool) {
    for (size_t u = 0; u < layouts.size(); ++u) fill(u);
  }

  template <typename UnitExecution>
  void visit_pieces(size_t u, const UnitExecution& execution) {
    const auto state = store.state(UnitId(static_cast<int32_t>(u)));
    for (const ShardPiece& piece : layouts[u].trained_pieces(rank)) {
      const StateSpans spans = state->segment(piece.segment);
      execution(model.units[u].parameters[static_cast<size_t>(piece.parameter)], piece, spans);
    }
  }

  void fill(size_t u) {
    visit_pieces(u, [](const ParamSpec& spec, const ShardPiece& piece, const StateSpans& spans) {
      std::vector<float> values;
      for (int64_t i = 0; i < piece.elements; ++i) {
        values.push_back(value_of(spec.name, piece.parameter_begin + i, 0));
      }
      write_values(spans, piece.shard_begin, values);
    });
  }

  void put_gradients(int64_t update) {
    const DType drain = gradients.dtype();
    for (size_t u = 0; u < layouts.size(); ++u) {
      for (const ShardPiece& piece : layouts[u].trained_pieces(rank)) {
        const ParamSpec& spec = model.units[u].parameters[static_cast<size_t>(piece.parameter)];
        const std::span<std::byte> shards =
            gradients.segment(UnitId(static_cast<int32_t>(u)), piece.segment);
        for (int64_t i = 0; i < piece.elements; ++i) {
          const float value = value_of(spec.name, piece.parameter_begin + i, update);
          const uint16_t bits = float_to_bf16_nearest(value);
          std::byte* place = shards.data() + (piece.shard_begin + i) * width_of(drain);
          std::memcpy(place, drain == DType::kF32 ? static_cast<const void*>(&value) : &bits,
                      static_cast<size_t>(width_of(drain)));
        }
      }
    }
  }

  void step(int64_t update) {
    put_gradients(update);
    pipeline.stage({.update = update, .lr = 1e-2, .clip_scale = 0.75});
    pipeline.flush();
  }

  // Copies the masters of this rank's pieces into whole parameters, by parameter and element.
  void gather_masters(std::vector<std::vector<std::vector<float>>>& whole) {
    whole.resize(layouts.size());
    for (size_t u = 0; u < layouts.size(); ++u) {
      whole[u].resize(model.units[u].parameters.size());
      visit_pieces(u, [&](const ParamSpec& spec, const ShardPiece& piece, const StateSpans& spans) {
        auto& parameter = whole[u][static_cast<size_t>(piece.parameter)];
        parameter.resize(static_cast<size_t>(spec.elements()));
        read_values(spans, piece.shard_begin,
                    std::span(parameter).subspan(static_cast<size_t>(piece.parameter_begin),
                                                 static_cast<size_t>(piece.elements)));
      });
    }
  }
  std::vector<std::vector<std::vector<float>>> masters() {
    std::vector<std::vector<std::vector<float>>> whole;
    gather_masters(whole);
    return whole;
  }

  std::vector<std::byte> arena() {
    const std::span<std::byte> bytes = store.mapping().bytes();
    return {bytes.begin(), bytes.end()};
  }
};

constexpr StateOptions kSplit = {StateFormat::kSplit, DType::kBF16, DType::kBF16};
constexpr StateOptions kFp32 = {StateFormat::kFp32, DType::kBF16, DType::kBF16};
constexpr StateOptions kBf16 = {StateFormat::kSplitBf16, DType::kBF16, DType::kBF16};
constexpr StateOptions kInt8 = {StateFormat::kSplitInt8, DType::kBF16, DType::kF32};

// The update gives the same bits on any number of threads.
TEST(OptimizerPipeline, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const StateOptions& options :
       {kSplit, kFp32, kBf16, kInt8, StateOptions{StateFormat::kSplit, DType::kF32, DType::kF32}}) {
    HostShards one(options, 1);
    for (int64_t update = 1; update <= 3; ++update) one.step(update);
    for (int threads : {2, 3, 7, 16}) {
      HostShards many(options, threads);
      for (int64_t update = 1; update <= 3; ++update) many.step(update);
      EXPECT_EQ(one.arena(), many.arena()) << threads << " threads";
    }
  }
}

// The split and fp32 formats give the same masters.
TEST(OptimizerPipeline, GivesTheSameMastersInBothFormats) {
  HostShards split(kSplit, 2);
  HostShards fp32(kFp32, 1);
  for (int64_t update = 1; update <= 4; ++update) {
    split.step(update);
    fp32.step(update);
  }
  EXPECT_EQ(split.masters(), fp32.masters());
}

// Goal: each element is updated on exactly one rank, with the same bits at any number of shards.
TEST(OptimizerPipeline, UpdatesEachElementOnExactlyOneRankToTheSameBits) {
  for (const StateOptions& options : {kSplit, kFp32, kBf16, kInt8}) {
    HostShards whole(options, 1);
    for (int64_t update = 1; update <= 2; ++update) whole.step(update);
    for (int32_t ranks = 2; ranks <= 8; ++ranks) {
      std::vector<std::vector<std::vector<float>>> gathered;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        HostShards part(options, 1, ranks, Rank(rank));
        for (int64_t update = 1; update <= 2; ++update) part.step(update);
        part.gather_masters(gathered);
      }
      EXPECT_EQ(gathered, whole.masters()) << ranks << " ranks";
    }
  }
}

// Frozen parameters and padding stay unchanged.
TEST(OptimizerPipeline, LeavesFrozenParametersAndPaddingAlone) {
  HostShards shards(kSplit, 2);
  const auto before = shards.masters();
  shards.step(1);
  const auto after = shards.masters();
  for (size_t u = 0; u < before.size(); ++u) {
    for (size_t p = 0; p < before[u].size(); ++p) {
      EXPECT_EQ(before[u][p] == after[u][p], shards.model.units[u].parameters[p].frozen)
          << shards.model.units[u].parameters[p].name;
    }
  }
  // In block.0 the 64 elements of the norm begin a padded segment of 256.
  const auto state = shards.store.state(UnitId(1));
  const StateSpans norms = state->segment(Segment::kFullMoments);
  const std::span<float> moments = norms.regions[0].f32();
  EXPECT_NE(moments[63], 0.0f);
  for (size_t i = 64; i < moments.size(); ++i) ASSERT_EQ(moments[i], 0.0f);
}

// Only matrices decay, unless decay is asked for all.
TEST(OptimizerPipeline, DecaysMatricesOnlyUnlessAllIsAsked) {
  for (DecayRule decay : {DecayRule::kMatrices, DecayRule::kAll}) {
    HostShards shards(kFp32, 1);
    AdamWOptions options = kOptions;
    options.decay = decay;
    OptimizerPipeline pipeline(&shards.store, &shards.gradients, shards.layouts, shards.model,
                               Rank(0), std::make_unique<AdamWRule>(options), &shards.pool);
    const auto before = shards.masters();
    pipeline.stage({.update = 1, .lr = 0.5, .clip_scale = 1.0});  // zero gradients: only decay acts
    pipeline.flush();
    const auto after = shards.masters();
    const float keep = static_cast<float>(1.0 - 0.5 * 0.1);
    const float matrix = before[1][1][7];
    const float norm = before[1][0][7];
    EXPECT_EQ(after[1][1][7], matrix * keep);
    EXPECT_EQ(after[1][0][7], decay == DecayRule::kAll ? norm * keep : norm);
  }
}

// A pending update is applied once, in any order of units.
TEST(OptimizerPipeline, AppliesAPendingUpdateOnceInAnyOrder) {
  HostShards in_order(kSplit, 1);
  HostShards backwards(kSplit, 1);
  in_order.step(1);
  backwards.put_gradients(1);
  backwards.pipeline.stage({.update = 1, .lr = 1e-2, .clip_scale = 0.75});
  EXPECT_TRUE(backwards.pipeline.pending());
  EXPECT_TRUE(backwards.pipeline.update(UnitId(3)));
  EXPECT_FALSE(backwards.pipeline.update(UnitId(3))) << "once";
  EXPECT_FALSE(backwards.pipeline.pending(UnitId(2))) << "frozen";
  EXPECT_FALSE(backwards.pipeline.update(UnitId(2)));
  EXPECT_THROW(backwards.pipeline.stage({.update = 2}), CheckFailure) << "unit 0 still waits";
  backwards.pipeline.flush();
  EXPECT_FALSE(backwards.pipeline.pending());
  EXPECT_EQ(in_order.arena(), backwards.arena());
}

// Without a staged step an update does nothing.
TEST(OptimizerPipeline, DoesNothingBeforeAStepIsStaged) {
  HostShards shards(kSplit, 1);
  const std::vector<std::byte> before = shards.arena();
  EXPECT_FALSE(shards.pipeline.update(UnitId(0)));
  shards.pipeline.flush();
  EXPECT_EQ(shards.arena(), before);
}

// The bytes of the update are counted.
TEST(OptimizerPipeline, CountsTheBytesOfTheUpdate) {
  HostShards shards(kSplit, 1);
  shards.step(1);
  EXPECT_EQ(shards.pipeline.take_bytes(), shards.model.trainable_elements() * 26);
  EXPECT_EQ(shards.pipeline.take_bytes(), 0) << "taken";
}

// SignDescent: another element-wise optimizer.
class SignDescent final : public UpdateRule {
 public:
  std::span<const StateRegion> regions() const override { return kDefaultRegions; }
  int32_t group_of(const ParamSpec&) const override { return 0; }
  void stage(const StepUpdate& update) override { lr_ = static_cast<float>(update.lr); }
  void apply(int32_t, const UpdateSlice& slice) const override {
    const auto* gradient = reinterpret_cast<const uint16_t*>(slice.gradient.data());
    for (size_t i = 0; i < slice.elements(); ++i) {
      slice.master[i] -= std::copysign(lr_, bf16_to_float(gradient[i]));
      slice.high[i] = master_high(slice.master[i]);
    }
  }

 private:
  float lr_ = 0.0f;
};

// The pipeline runs another element-wise optimizer unchanged.
TEST(OptimizerPipeline, TakesAnotherElementWiseOptimizer) {
  HostShards shards(kFp32, 2);
  const auto before = shards.masters();
  shards.put_gradients(1);
  OptimizerPipeline pipeline(&shards.store, &shards.gradients, shards.layouts, shards.model,
                             Rank(0), std::make_unique<SignDescent>(), &shards.pool);
  pipeline.stage({.update = 1, .lr = 0.5});
  pipeline.flush();
  const auto after = shards.masters();
  EXPECT_EQ(std::fabs(after[1][1][7] - before[1][1][7]), 0.5f);
  EXPECT_EQ(after[2], before[2]) << "frozen";
}

}  // namespace
}  // namespace longshore
