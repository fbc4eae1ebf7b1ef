#include "offload/optimizer/adamw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "offload/optimizer/adamw_kernels.h"
#include "shard/flat_layout.h"

namespace longshore {
namespace {

bool has_its_units(const MomentSpan& moment) {
  const auto elements = static_cast<int64_t>(moment.elements());
  return static_cast<int64_t>(moment.units.size()) == moment_blocks(moment.format, elements);
}

void check_slice(const UpdateSlice& slice) {
  LONGSHORE_CHECK(slice.regions.size() == kAdamWRegions.size()) << slice.regions.size();
  const size_t count = exp_avg(slice).elements();
  const bool split = !slice.low.empty();
  LONGSHORE_CHECK(exp_avg_sq(slice).elements() == count);
  LONGSHORE_CHECK(exp_avg_sq(slice).format == exp_avg(slice).format);
  LONGSHORE_CHECK(has_its_units(exp_avg(slice)) && has_its_units(exp_avg_sq(slice)));
  if (exp_avg(slice).format != MomentFormat::kF32 && count > 0) {
    LONGSHORE_CHECK(split) << "only split masters have moments narrower than fp32";
    LONGSHORE_CHECK(slice.rounding.first_element % kBlockElements == 0)
        << slice.rounding.first_element;
  }
  LONGSHORE_CHECK(slice.master.size() == (split ? 0 : count)) << slice.master.size();
  LONGSHORE_CHECK(slice.low.size() == (split ? count : 0)) << slice.low.size();
  LONGSHORE_CHECK(slice.high.size() == count || (!split && slice.high.empty()));
  LONGSHORE_CHECK(slice.gradient_dtype != DType::kF16);
  LONGSHORE_CHECK(slice.gradient.size() ==
                  count * static_cast<size_t>(width_of(slice.gradient_dtype)))
      << slice.gradient.size() << " bytes of gradient for " << count << " elements";
}

float gradient_at(const UpdateSlice& slice, size_t i) {
  if (slice.gradient_dtype == DType::kF32) {
    return reinterpret_cast<const float*>(slice.gradient.data())[i];
  }
  return bf16_to_float(reinterpret_cast<const uint16_t*>(slice.gradient.data())[i]);
}

// Updates the element's parameter by `formula`; moments are passed and returned as fp32.
template <typename Formula>
void update_element(const UpdateSlice& slice, size_t i, float& m, float& v, const AdamWScalars& s,
                    const Formula& formula) {
  const bool split = !slice.low.empty();
  float p = split ? join_master(slice.high[i], slice.low[i]) : slice.master[i];
  formula(gradient_at(slice, i), m, v, p, s);
  if (split) slice.low[i] = master_low(p);
  if (!split) slice.master[i] = p;
  if (!slice.high.empty()) slice.high[i] = master_high(p);
}

void update_f32(const UpdateSlice& slice, const AdamWScalars& scalars) {
  for (size_t i = 0; i < slice.elements(); ++i) {
    update_element(slice, i, exp_avg(slice).f32()[i], exp_avg_sq(slice).f32()[i], scalars,
                   internal::adamw_element);
  }
}

void update_bf16(const UpdateSlice& slice, const AdamWScalars& scalars) {
  auto* m_stored = reinterpret_cast<uint16_t*>(exp_avg(slice).values.data());
  auto* v_stored = reinterpret_cast<uint16_t*>(exp_avg_sq(slice).values.data());
  for (size_t i = 0; i < slice.elements(); ++i) {
    float m = bf16_to_float(m_stored[i]);
    float v = bf16_to_float(v_stored[i]);
    update_element(slice, i, m, v, scalars, internal::adamw_element);
    m_stored[i] = float_to_bf16_stochastic(m, random16(slice.rounding, Moment::kFirst, i));
    v_stored[i] = float_to_bf16_stochastic(v, random16(slice.rounding, Moment::kSecond, i));
  }
}

void update_int8_block(const UpdateSlice& slice, size_t block, const AdamWScalars& scalars) {
  const size_t begin = block * kMomentBlockElements;
  const size_t count = std::min(slice.elements() - begin, size_t{kMomentBlockElements});
  auto* m_codes = reinterpret_cast<uint8_t*>(exp_avg(slice).values.data()) + begin;
  auto* v_codes = reinterpret_cast<uint8_t*>(exp_avg_sq(slice).values.data()) + begin;
  float& m_unit = exp_avg(slice).units[block];
  float& v_unit = exp_avg_sq(slice).units[block];
  std::array<float, kMomentBlockElements> m{};
  std::array<float, kMomentBlockElements> v{};
  float m_largest = 0.0f;
  float v_largest = 0.0f;
  for (size_t i = 0; i < count; ++i) {
    m[i] = decode_first_moment(m_codes[i], scalars.beta1 * m_unit);
    v[i] = decode_second_moment(v_codes[i], scalars.beta2 * v_unit);
    update_element(slice, begin + i, m[i], v[i], scalars, internal::adamw_decayed_element);
    m_largest = std::max(m_largest, std::fabs(m[i]));
    v_largest = std::max(v_largest, v[i]);
  }
  m_unit = moment_unit(kFirstMomentCurve, m_largest);
  v_unit = moment_unit(kSecondMomentCurve, v_largest);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t m_random = random19(slice.rounding, Moment::kFirst, begin + i);
    const uint32_t v_random = random19(slice.rounding, Moment::kSecond, begin + i);
    m_codes[i] = encode_first_moment(m[i], 1.0f / m_unit, m_random);
    v_codes[i] = encode_second_moment(v[i], 1.0f / v_unit, v_random);
  }
}

}  // namespace

AdamWScalars make_adamw_scalars(const AdamWOptions& options, int64_t update, double lr,
                                double clip_scale, bool decays) {
  LONGSHORE_CHECK(update >= 1) << update;
  const auto t = static_cast<double>(update);
  const double c1 = 1.0 - std::pow(options.beta1, t);
  const double c2 = 1.0 - std::pow(options.beta2, t);
  return {.clip_scale = static_cast<float>(clip_scale),
          .beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
          .keep = decays ? static_cast<float>(1.0 - lr * options.weight_decay) : 1.0f,
          .step_size = static_cast<float>(lr / c1),
          .inv_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2)),
          .eps = static_cast<float>(options.eps)};
}

std::string_view name_of(SimdLevel level) {
  switch (level) {
    case SimdLevel::kBaseline:
      return "baseline";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx2Vaes:
      return "avx2-vaes";
    case SimdLevel::kAvx512:
      return "avx512";
    case SimdLevel::kAvx512Vaes:
      return "avx512-vaes";
  }
  return "?";
}

void adamw_step(const UpdateSlice& slice, const AdamWScalars& scalars) {
  static const SimdLevel level = best_simd_level();
  adamw_step_at(level, slice, scalars);
}

void adamw_step_at(SimdLevel level, const UpdateSlice& slice, const AdamWScalars& scalars) {
  check_slice(slice);
  internal::adamw_kernel(level, slice, scalars);
}

void adamw_step_reference(const UpdateSlice& slice, const AdamWScalars& scalars) {
  check_slice(slice);
  internal::adamw_scalar(slice, scalars);
}

void internal::adamw_scalar(const UpdateSlice& slice, const AdamWScalars& scalars) {
  switch (exp_avg(slice).format) {
    case MomentFormat::kF32:
      return update_f32(slice, scalars);
    case MomentFormat::kBF16:
      return update_bf16(slice, scalars);
    case MomentFormat::kInt8:
      for (size_t block = 0; block < exp_avg(slice).units.size(); ++block) {
        update_int8_block(slice, block, scalars);
      }
      return;
  }
}

namespace {

bool contains(const AdamWGroup& group, const ParamSpec& parameter) {
  return std::ranges::any_of(group.parameters, [&](const std::string& glob) {
    return glob_matches(glob, parameter.name);
  });
}

// Returns the first group that contains the parameter, whose settings it has; their number if none.
size_t group_with(const std::vector<AdamWGroup>& groups, const ParamSpec& parameter) {
  const auto found = std::ranges::find_if(
      groups, [&](const AdamWGroup& group) { return contains(group, parameter); });
  return static_cast<size_t>(found - groups.begin());
}

bool owns_any(const std::vector<AdamWGroup>& groups, size_t group, const ModelSpec& model) {
  return std::ranges::any_of(model.units, [&](const UnitSpec& unit) {
    return std::ranges::any_of(unit.parameters, [&](const ParamSpec& parameter) {
      return !parameter.frozen && group_with(groups, parameter) == group;
    });
  });
}

bool names_trainable(const std::string& glob, const ModelSpec& model) {
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.frozen && glob_matches(glob, parameter.name)) return true;
    }
  }
  return false;
}

}  // namespace

AdamWRule::AdamWRule(AdamWOptions options) : options_(std::move(options)) {}

int32_t AdamWRule::group_of(const ParamSpec& parameter) const {
  const size_t place = group_with(options_.groups, parameter);
  // A group with its own decay applies it to all of its parameters.
  const bool own = place < options_.groups.size() && options_.groups[place].weight_decay;
  const bool decays = own || options_.decay == DecayRule::kAll || parameter.is_matrix();
  return 2 * static_cast<int32_t>(place) + (decays ? 1 : 0);
}

void AdamWRule::stage(const StepUpdate& update) {
  scalars_.clear();
  for (size_t i = 0; i <= options_.groups.size(); ++i) {
    AdamWOptions options = options_;
    double lr = update.lr;
    if (i < options_.groups.size()) {
      const AdamWGroup& group = options_.groups[i];
      lr *= group.lr_ratio;
      options.weight_decay = group.weight_decay.value_or(options_.weight_decay);
    }
    for (const bool decays : {false, true}) {
      scalars_.push_back(make_adamw_scalars(options, update.update, lr, update.clip_scale, decays));
    }
  }
}

void AdamWRule::apply(int32_t group, const UpdateSlice& slice) const {
  adamw_step(slice, scalars_.at(static_cast<size_t>(group)));
}

void check_groups(const AdamWOptions& options, const ModelSpec& model) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < options.groups.size(); ++i) {
    for (const std::string& glob : options.groups[i].parameters) {
      if (names_trainable(glob, model)) continue;
      problems.push_back("optimizer.groups: '" + glob + "' of group " + std::to_string(i + 1) +
                         " matches no parameter that is trained");
    }
    if (owns_any(options.groups, i, model) || !problems.empty()) continue;
    problems.push_back("optimizer.groups: group " + std::to_string(i + 1) +
                       " has no parameter, because all that it matches are in groups before it, "
                       "and the first that matches counts; put it before those");
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

}  // namespace longshore
