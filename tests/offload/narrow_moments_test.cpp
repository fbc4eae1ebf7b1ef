// Narrow moments against fp32 over thousands of updates with equal gradients: their errors are the
// noise of independent rounding, and cancel on average. Constant random bits, bits shared between
// elements, rounding to nearest and rounding down would all fail.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/number_formats.h"
#include "base/random.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "pinned/pinned_store.h"
#include "shard/shard_store.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

constexpr int64_t kElements = 64 * 512;
constexpr int64_t kUpdates = 1500;
// With this beta2 an update changes a second moment by a fraction of bf16's last place.
constexpr AdamWOptions kOptions = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.0};

ModelSpec one_matrix() {
  ModelSpec model;
  UnitSpec unit;
  unit.id = UnitId(0);
  unit.name = "unit";
  unit.parameters = {fakes::make_parameter("weight", {64, 512})};
  model.units = {unit};
  return model;
}

float uniform(int64_t element, int64_t update) {
  const uint32_t bits =
      philox4x32({static_cast<uint32_t>(element), static_cast<uint32_t>(update), 0, 0}, {3, 0})[0];
  return static_cast<float>(bits >> 8) / 16777216.0f;
}

// Returns a gradient with a fixed sign and size for each element, and noise.
float gradient_of(int64_t element, int64_t update) {
  const float size = 0.01f * (1.0f + 3.0f * uniform(element, -1));
  const float sign = element % 3 == 0 ? -1.0f : 1.0f;
  return sign * size * (0.5f + uniform(element, update));
}

// Returns sixteen sets of gradients, used in rotation.
const std::vector<std::vector<float>>& gradients_in_turn() {
  static const std::vector<std::vector<float>> turns = [] {
    std::vector<std::vector<float>> made(16);
    for (size_t turn = 0; turn < made.size(); ++turn) {
      for (int64_t i = 0; i < kElements; ++i) {
        made[turn].push_back(gradient_of(i, static_cast<int64_t>(turn)));
      }
    }
    return made;
  }();
  return turns;
}

struct Trained {
  std::vector<float> master, first, second;
};

Trained train(StateFormat format) {
  const ModelSpec model = one_matrix();
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  const StateOptions options = {format, DType::kBF16, DType::kF32};
  WorkerPool pool(2);
  PinnedStore store(layouts, options, false, &pool);
  HostGradients gradients(layouts, {.dtype = options.drain}, false, pool);
  OptimizerPipeline pipeline(&store, &gradients, layouts, model, Rank(0),
                             std::make_unique<AdamWRule>(kOptions), &pool);
  const auto gradient = gradients.segment(UnitId(0), Segment::kQuantisedMoments);
  const std::vector<std::vector<float>>& turns = gradients_in_turn();
  for (int64_t update = 1; update <= kUpdates; ++update) {
    const std::vector<float>& values = turns[static_cast<size_t>(update) % turns.size()];
    std::memcpy(gradient.data(), values.data(), values.size() * sizeof(float));
    pipeline.stage({.update = update, .lr = 1e-4, .clip_scale = 1.0});
    pipeline.flush();
  }
  const std::vector<float> empty(kElements);
  Trained trained{empty, empty, empty};
  const auto state = store.state(UnitId(0));
  const StateSpans spans = state->segment(Segment::kQuantisedMoments);
  read_values(spans, 0, trained.master);
  read_moments(Moment::kFirst, spans.regions[0], 0, trained.first);
  read_moments(Moment::kSecond, spans.regions[1], 0, trained.second);
  return trained;
}

// Errors: statistics of (got - wanted) / wanted over all elements.
struct Errors {
  double mean = 0.0, deviation = 0.0;
};

Errors errors_of(const std::vector<float>& got, const std::vector<float>& wanted) {
  Errors errors;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = (double{got[i]} - wanted[i]) / wanted[i];
    errors.mean += error / static_cast<double>(got.size());
    errors.deviation += error * error / static_cast<double>(got.size());
  }
  errors.deviation = std::sqrt(errors.deviation);
  return errors;
}

struct Bounds {
  StateFormat format;
  Errors first, second, master;
};

// Deviations may be twice those of independent rounding. A mean over 32,768 elements may be off by
// five of its own deviations, the masters' by twice the bias of Adam's square root.
constexpr Bounds kBounds[] = {
    {StateFormat::kSplitBf16, {0.0002, 0.011}, {0.001, 0.066}, {0.0005, 0.019}},
    {StateFormat::kSplitInt8, {0.0012, 0.086}, {0.003, 0.22}, {0.009, 0.07}}};

// The errors of each narrow format stay within its bounds.
TEST(NarrowMoments, StayAroundThoseOfFp32) {
  const Trained wanted = train(StateFormat::kSplit);
  for (const Bounds& bounds : kBounds) {
    const Trained got = train(bounds.format);
    const auto expect_within = [&](const char* what, const std::vector<float>& values,
                                   const std::vector<float>& right, const Errors& most) {
      const Errors errors = errors_of(values, right);
      EXPECT_LT(std::abs(errors.mean), most.mean) << name_of(bounds.format) << " " << what;
      EXPECT_LT(errors.deviation, most.deviation) << name_of(bounds.format) << " " << what;
    };
    expect_within("first moment", got.first, wanted.first, bounds.first);
    expect_within("second moment", got.second, wanted.second, bounds.second);
    expect_within("master", got.master, wanted.master, bounds.master);
  }
}

}  // namespace
}  // namespace longshore
