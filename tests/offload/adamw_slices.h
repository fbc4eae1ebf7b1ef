// State of one parameter in both formats, for tests of the update. Owned by a test.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/number_formats.h"
#include "offload/adamw.h"

namespace longshore::fakes {

enum class Form { kMaster, kMasterAndParameter, kSplit };
inline constexpr Form kForms[] = {Form::kMaster, Form::kMasterAndParameter, Form::kSplit};

struct AdamWState {
  Form form;
  DType gradient_dtype;
  std::vector<float> master;
  std::vector<uint16_t> high, low;
  std::vector<float> exp_avg, exp_avg_sq;
  std::vector<std::byte> gradient;

  AdamWState(Form f, DType dtype, const std::vector<float>& start)
      : form(f), gradient_dtype(dtype) {
    if (form != Form::kSplit) master = start;
    for (float value : start) {
      if (form != Form::kMaster) high.push_back(master_high(value));
      if (form == Form::kSplit) low.push_back(master_low(value));
    }
    exp_avg.resize(start.size());
    exp_avg_sq.resize(start.size());
  }

  // Rounds to the gradient's dtype.
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

  AdamWSlice slice(size_t begin, size_t count) {
    const auto part = [&](auto& whole) {
      return whole.empty() ? std::span(whole) : std::span(whole).subspan(begin, count);
    };
    const auto width = static_cast<size_t>(width_of(gradient_dtype));
    return {.master = part(master),
            .high = part(high),
            .low = part(low),
            .exp_avg = part(exp_avg),
            .exp_avg_sq = part(exp_avg_sq),
            .gradient = std::span<const std::byte>(gradient).subspan(begin * width, count * width),
            .gradient_dtype = gradient_dtype};
  }
  AdamWSlice slice() { return slice(0, exp_avg.size()); }

  std::vector<float> masters() const {
    if (form != Form::kSplit) return master;
    std::vector<float> joined;
    for (size_t i = 0; i < high.size(); ++i) joined.push_back(join_master(high[i], low[i]));
    return joined;
  }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline bool same_bits(const AdamWState& a, const AdamWState& b) {
  return same_bits(a.master, b.master) && same_bits(a.high, b.high) && same_bits(a.low, b.low) &&
         same_bits(a.exp_avg, b.exp_avg) && same_bits(a.exp_avg_sq, b.exp_avg_sq);
}

// Normal values over many magnitudes, zeros and denormals among them.
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
