// The update against torch.optim.AdamW and double precision. golden/make_adamw.py printed the
// numbers, from the same parameters and gradients.
#include <gtest/gtest.h>

#include <array>

#include "offload/optimizer/adamw.h"
#include "offload/optimizer/update_rule.h"
#include "tests/offload/adamw_slices.h"

namespace longshore {
namespace {

using fakes::AdamWState;
using fakes::Form;

constexpr int64_t kElements = 4096;
constexpr int64_t kSteps = 200;
constexpr int64_t kSampleStride = 585;
constexpr double kLr = 1e-3;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;
constexpr double kEps = 1e-8;

double start(int64_t i) {
  return static_cast<double>(i * 40503 % 65536 - 32768) / 32768.0;
}

double gradient(int64_t i, int64_t step) {
  const int64_t value = (i * 7919 + step * 104729 + i * step * 31) % 2003 - 1001;
  return std::ldexp(static_cast<double>(value) / 1024.0, -static_cast<int>(i % 12));
}

struct Golden {
  double decay;
  int64_t step;
  std::array<double, 8> values;  // of elements 0, 585, 1170, ...
};
constexpr Golden kGolden[] = {
    {0.0,
     1,
     {-0x1.ff7cee0000000p-1, 0x1.79f8920000000p-4, -0x1.a204ee0000000p-1, 0x1.1761dc0000000p-2,
      -0x1.4593120000000p-1, 0x1.d251dc0000000p-2, -0x1.d036240000000p-2, 0x1.46a0ee0000000p-1}},
    {0.0,
     10,
     {-0x1.fed33c0000000p-1, 0x1.7b79540000000p-4, -0x1.a0d5220000000p-1, 0x1.1495560000000p-2,
      -0x1.479dde0000000p-1, 0x1.cff3d20000000p-2, -0x1.d0282e0000000p-2, 0x1.46bfe80000000p-1}},
    {0.0,
     200,
     {-0x1.f2a72e0000000p-1, 0x1.61eaca0000000p-4, -0x1.9dfd6e0000000p-1, 0x1.131a740000000p-2,
      -0x1.44bebc0000000p-1, 0x1.b7c0c60000000p-2, -0x1.ce014a0000000p-2, 0x1.4a5f620000000p-1}},
    {0.1,
     1,
     {-0x1.ff6fd20000000p-1, 0x1.79ef000000000p-4, -0x1.a1fa360000000p-1, 0x1.175aae0000000p-2,
      -0x1.458ac00000000p-1, 0x1.d245e40000000p-2, -0x1.d02a480000000p-2, 0x1.46988e0000000p-1}},
    {0.1,
     10,
     {-0x1.fe50600000000p-1, 0x1.7b182e0000000p-4, -0x1.a06a480000000p-1, 0x1.144e380000000p-2,
      -0x1.474a5a0000000p-1, 0x1.cf7cbc0000000p-2, -0x1.cfb1680000000p-2, 0x1.466c420000000p-1}},
    {0.1,
     200,
     {-0x1.e8af120000000p-1, 0x1.5ac9a60000000p-4, -0x1.95c36e0000000p-1, 0x1.0da8de0000000p-2,
      -0x1.3e137c0000000p-1, 0x1.aec61e0000000p-2, -0x1.c4d29c0000000p-2, 0x1.43d8b80000000p-1}},
};

// TorchError: torch's own fp32 error after 200 steps against its fp64 run.
struct TorchError {
  double decay;
  double norm;
  double largest;
};
constexpr TorchError kTorchErrors[] = {{0.0, 1.195783e-05, 2.313e-06},
                                       {0.1, 1.211842e-04, 4.166e-06}};

AdamWOptions options_of(double decay) {
  return {.beta1 = kBeta1, .beta2 = kBeta2, .eps = kEps, .weight_decay = decay};
}

// Trains with the fp32 kernels and calls `seen(step, parameters)` after every step.
template <typename Seen>
void train(double decay, const Seen& seen) {
  std::vector<float> values;
  for (int64_t i = 0; i < kElements; ++i) values.push_back(static_cast<float>(start(i)));
  AdamWState state(Form::kSplit, DType::kF32, values);
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (int64_t i = 0; i < kElements; ++i) {
      values[static_cast<size_t>(i)] = static_cast<float>(gradient(i, step));
    }
    state.set_gradient(values);
    adamw_step(state.slice(), make_adamw_scalars(options_of(decay), step, kLr, 1.0, true));
    seen(step, state.masters());
  }
}

// Trains in double precision with the formula of the paper.
std::vector<double> train_in_double(double decay) {
  std::vector<double> p;
  for (int64_t i = 0; i < kElements; ++i) p.push_back(start(i));
  std::vector<double> m(p.size());
  std::vector<double> v(p.size());
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double c1 = 1.0 - std::pow(kBeta1, static_cast<double>(step));
    const double c2 = 1.0 - std::pow(kBeta2, static_cast<double>(step));
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = gradient(static_cast<int64_t>(i), step);
      m[i] = kBeta1 * m[i] + (1.0 - kBeta1) * g;
      v[i] = kBeta2 * v[i] + (1.0 - kBeta2) * g * g;
      p[i] -= kLr * decay * p[i];
      p[i] -= kLr * (m[i] / c1) / (std::sqrt(v[i] / c2) + kEps);
    }
  }
  return p;
}

// The parameters agree with torch after each golden step.
TEST(AdamWGolden, AgreesWithTorchStepByStep) {
  for (double decay : {0.0, 0.1}) {
    train(decay, [decay](int64_t step, const std::vector<float>& parameters) {
      for (const Golden& golden : kGolden) {
        if (golden.decay != decay || golden.step != step) continue;
        for (size_t i = 0; i < golden.values.size(); ++i) {
          // Each step rounds once or twice at 2^-24 of values below 1.
          const double tolerance = 1.2e-7 * std::sqrt(static_cast<double>(step)) + 1e-8;
          EXPECT_NEAR(parameters[i * kSampleStride], golden.values[i], tolerance)
              << "step " << step << ", sample " << i;
        }
      }
    });
  }
}

// After all steps the result is as near to double precision as torch's.
TEST(AdamWGolden, IsAsNearToDoublePrecisionAsTorchIs) {
  for (const TorchError& torch : kTorchErrors) {
    const std::vector<double> exact = train_in_double(torch.decay);
    train(torch.decay, [&](int64_t step, const std::vector<float>& parameters) {
      if (step != kSteps) return;
      double squares = 0.0;
      double largest = 0.0;
      for (size_t i = 0; i < exact.size(); ++i) {
        const double error = parameters[i] - exact[i];
        squares += error * error;
        largest = std::max(largest, std::fabs(error));
      }
      EXPECT_LE(std::sqrt(squares), 1.25 * torch.norm) << "decay " << torch.decay;
      EXPECT_LE(largest, 1.25 * torch.largest) << "decay " << torch.decay;
    });
  }
}

// The scalars of a step are rounded to fp32 once.
TEST(AdamWGolden, RoundsTheScalarsOfAStepOnce) {
  const AdamWScalars s = make_adamw_scalars(options_of(0.1), 3, 2e-5, 0.5, true);
  EXPECT_EQ(s.clip_scale, 0.5f);
  EXPECT_EQ(s.one_minus_beta1, static_cast<float>(1.0 - 0.9));
  EXPECT_EQ(s.keep, static_cast<float>(1.0 - 2e-5 * 0.1));
  EXPECT_EQ(s.step_size, static_cast<float>(2e-5 / (1.0 - std::pow(0.9, 3.0))));
  EXPECT_EQ(s.inv_sqrt_c2, static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(0.95, 3.0))));
  EXPECT_EQ(make_adamw_scalars(options_of(0.1), 3, 2e-5, 0.5, false).keep, 1.0f);
}

// Clipping limits the norm, and the scale is 1 without it.
TEST(ClipScale, LimitsTheNormAndIsOneWithoutClipping) {
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_scale(123.0, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_scale(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_scale(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace longshore
