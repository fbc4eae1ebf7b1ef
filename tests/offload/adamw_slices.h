// AdamWState: one parameter's state in every format, for tests of the update. The test owns it.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/number_formats.h"
#include "offload/optimizer/adamw.h"

namespace longshore::fakes {

enum class Form { kMaster, kMasterAndParameter, kSplit, kSplitBf16, kSplitInt8 };
inline constexpr Form kForms[] = {Form::kMaster, Form::kMasterAndParameter, Form::kSplit,
                                  Form::kSplitBf16, Form::kSplitInt8};

inline MomentFormat moments_of(Form form) {
  if (form == Form::kSplitBf16) return MomentFormat::kBF16;
  return form == Form::kSplitInt8 ? MomentFormat::kInt8 : MomentFormat::kF32;
}

struct AdamWState {
  Form form;
  DType gradient_dtype;
  std::vector<float> master;
  std::vector<uint16_t> high, low;
  std::vector<std::byte> exp_avg, exp_avg_sq;
  std::vector<float> exp_avg_units, exp_avg_sq_units;
  std::vector<std::byte> gradient;
  uint64_t update = 0;  // selects the random bits

  AdamWState(Form f, DType dtype, const std::vector<float>& start)
      : form(f), gradient_dtype(dtype) {
    if (!split()) master = start;
    for (float value : start) {
      if (form != Form::kMaster) high.push_back(master_high(value));
      if (split()) low.push_back(master_low(value));
    }
    const auto width = static_cast<size_t>(width_of(moments_of(form)));
    exp_avg.resize(start.size() * width);
    exp_avg_sq.resize(start.size() * width);
    if (form == Form::kSplitInt8) {
      exp_avg_units.resize((start.size() + kMomentBlockElements - 1) / kMomentBlockElements);
      exp_avg_sq_units.resize(exp_avg_units.size());
    }
  }

  bool split() const { return form >= Form::kSplit; }
  size_t elements() const { return split() ? high.size() : master.size(); }

  // Sets the gradient, rounded to its dtype.
  void set_gradient(const std::vector<float>& values) {
    gradient.resize(values.size() * static_cast<size_t>(width_of(gradient_dtype)));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = float_to_bf16_nearest(values[i]);
      if (gradient_dtype == DType::kF32) {
        std::memcpy(gradient.data() + i * 4, &values[i], 4);
      } else {
        std::memcpy(gradient.data() + i * 2, &bits, 2);
      }
    }
  }

  // Returns a slice; with moments in blocks `begin` must be a multiple of 256.
  UpdateSlice slice(size_t begin, size_t count) {
    const auto part = [&](auto& whole) {
      return whole.empty() ? std::span(whole) : std::span(whole).subspan(begin, count);
    };
    const auto width = static_cast<size_t>(width_of(gradient_dtype));
    const MomentFormat format = moments_of(form);
    const MomentSpan first = {format, exp_avg, exp_avg_units};
    const MomentSpan second = {format, exp_avg_sq, exp_avg_sq_units};
    return {.master = part(master),
            .high = part(high),
            .low = part(low),
            .regions = {first.part(static_cast<int64_t>(begin), static_cast<int64_t>(count)),
                        second.part(static_cast<int64_t>(begin), static_cast<int64_t>(count))},
            .gradient = std::span<const std::byte>(gradient).subspan(begin * width, count * width),
            .gradient_dtype = gradient_dtype,
            .rounding = {{0x12345678u, 0x9abcdef0u}, begin, update}};
  }
  UpdateSlice slice() { return slice(0, elements()); }

  std::vector<float> masters() const {
    if (!split()) return master;
    std::vector<float> joined;
    for (size_t i = 0; i < high.size(); ++i) joined.push_back(join_master(high[i], low[i]));
    return joined;
  }
  std::vector<float> moments(Moment which) {
    std::vector<float> values(elements());
    const UpdateSlice all = slice();
    read_moments(which,
                 which == Moment::kFirst ? longshore::exp_avg(all) : longshore::exp_avg_sq(all), 0,
                 values);
    return values;
  }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline bool same_bits(const AdamWState& a, const AdamWState& b) {
  return same_bits(a.master, b.master) && same_bits(a.high, b.high) && same_bits(a.low, b.low) &&
         same_bits(a.exp_avg, b.exp_avg) && same_bits(a.exp_avg_sq, b.exp_avg_sq) &&
         same_bits(a.exp_avg_units, b.exp_avg_units) &&
         same_bits(a.exp_avg_sq_units, b.exp_avg_sq_units);
}

// Returns normal values over many magnitudes, with zeros and denormals among them.
inline std::vector<float> random_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    const int exponent = std::uniform_int_distribution<int>(-20, 3)(random);
    float value = std::ldexp(normal(random), exponent);
    if (i % 37 == 5) value = 0.0f;
    if (i % 41 == 7) value = std::ldexp(normal(random), -140);
    values.push_back(value);
  }
  return values;
}

}  // namespace longshore::fakes
