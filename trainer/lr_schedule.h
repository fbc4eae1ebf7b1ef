// LrSchedule: the learning rate of every step. Plain values and a pure function, any thread.
//
// With s = step - 1 (steps already done), T = total steps, W = warmup_steps, D = decay_steps and
// r = min_lr_ratio, the rate is peak times
//   s < W       s / W                                in every schedule
//   constant    1
//   linear      r + (1 - r) * (T - s) / (T - W)
//   cosine      r + (1 - r) * (1 + cos(pi * (s - W) / (T - W))) / 2
//   wsd         1 while s < T - D, then r + (1 - r) * (T - s) / D      (warm up, stay, decay)
// A step beyond T has the rate of s = T.
//
// These are the rates that transformers' Trainer gives its step-th update: constant, linear and
// cosine "with warmup" (cosine_with_min_lr where r > 0), and wsd with decay_type "linear". As
// there, the first of W > 0 warm-up steps has rate 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/ids.h"

namespace longshore {

enum class LrShape : uint8_t { kConstant, kLinear, kCosine, kWsd };

// "constant", "linear", "cosine", "wsd".
std::string_view name_of(LrShape shape);
std::optional<LrShape> parse_lr_shape(std::string_view name);

struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double peak_lr = 0.0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // of wsd
  double min_lr_ratio = 0.0;
};

// The rate of `step` (from 1) in a run of `total_steps` (>= 1).
double lr_at(const LrSchedule& schedule, Step step, int64_t total_steps);

}  // namespace longshore
