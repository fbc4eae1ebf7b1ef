// MuonRule: an update rule whose result needs the whole matrix, as the example of one: momentum,
// then five Newton-Schulz steps in fp32 that make the update nearly orthogonal. RecordedRule keeps
// the gradients that a run's rule gets, so that LibTorch can repeat its updates.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/number_formats.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/two_rules.h"

namespace longshore {

inline constexpr float kMuonMomentum = 0.95f;
inline constexpr float kMuonEps = 1e-7f;
inline constexpr std::array<float, 3> kMuonTerms = {3.4445f, -4.7750f, 2.0315f};
inline constexpr int kMuonSteps = 5;

// m = momentum * m + g; u = g + momentum * m; x = u / |u|, then five times
// a = x x', x = t0 x + (t1 a + t2 a a) x; p -= rate * sqrt(max(1, rows / columns)) * x.
class MuonRule final : public UpdateRule {
 public:
  static constexpr std::array<StateRegion, 1> kRegions = {
      {{"momentum_buffer", Moment::kFirst, MomentFormat::kF32}}};

  std::span<const StateRegion> regions() const override { return kRegions; }
  int32_t group_of(const ParamSpec&) const override { return 0; }
  UpdateGrain grain_of(const ParamSpec&) const override { return UpdateGrain::kMatrices; }
  void stage(const StepUpdate& update) override {
    rate_ = static_cast<float>(update.lr);
    clip_ = static_cast<float>(update.clip_scale);
  }
  void apply(int32_t, const UpdateSlice&) const override { LONGSHORE_CHECK(false); }
  int64_t scratch_elements(int64_t rows, int64_t columns) const override {
    const int64_t least = std::min(rows, columns);
    return 2 * rows * columns + 2 * least * least;
  }
  void apply_matrix(int32_t, const MatrixPlace& matrix, const UpdateSlice& slice,
                    std::span<float> scratch) const override {
    const int64_t least = std::min(matrix.rows, matrix.columns);
    const int64_t most = std::max(matrix.rows, matrix.columns);
    const auto part = [&scratch](int64_t elements) {
      const std::span<float> first = scratch.first(static_cast<size_t>(elements));
      scratch = scratch.subspan(first.size());
      return first.data();
    };
    float* const x = part(least * most);
    float* const next = part(least * most);
    float* const a = part(least * least);
    float* const b = part(least * least);
    take_momentum(matrix, slice, x);
    for (int step = 0; step < kMuonSteps; ++step) {
      multiply(x, x, a, least, most, least, /*turned=*/true);
      multiply(a, a, b, least, least, least, /*turned=*/false);
      for (int64_t i = 0; i < least * least; ++i)
        b[i] = kMuonTerms[1] * a[i] + kMuonTerms[2] * b[i];
      multiply(b, x, next, least, least, most, /*turned=*/false);
      for (int64_t i = 0; i < least * most; ++i) x[i] = kMuonTerms[0] * x[i] + next[i];
    }
    add(matrix, slice, x);
  }

 private:
  // Returns the place of an element in x, whose rows are the shorter side.
  static int64_t place_in(const MatrixPlace& matrix, int64_t row, int64_t column) {
    return matrix.rows <= matrix.columns ? row * matrix.columns + column
                                         : column * matrix.rows + row;
  }

  void take_momentum(const MatrixPlace& matrix, const UpdateSlice& slice, float* x) const {
    const auto* gradient = reinterpret_cast<const float*>(slice.gradient.data());
    const std::span<float> momentum = slice.regions.at(0).f32();
    double squares = 0.0;
    for (int64_t row = 0; row < matrix.rows; ++row) {
      for (int64_t column = 0; column < matrix.columns; ++column) {
        const auto i = static_cast<size_t>(matrix.element(row, column));
        const float g = gradient[i] * clip_;
        momentum[i] = kMuonMomentum * momentum[i] + g;
        const float u = g + kMuonMomentum * momentum[i];
        x[place_in(matrix, row, column)] = u;
        squares += static_cast<double>(u) * u;
      }
    }
    const float scale = 1.0f / (static_cast<float>(std::sqrt(squares)) + kMuonEps);
    for (int64_t i = 0; i < matrix.elements(); ++i) x[i] *= scale;
  }

  void add(const MatrixPlace& matrix, const UpdateSlice& slice, const float* x) const {
    const double tall = static_cast<double>(matrix.rows) / static_cast<double>(matrix.columns);
    const float rate = rate_ * static_cast<float>(std::sqrt(std::max(1.0, tall)));
    const bool split = !slice.low.empty();
    for (int64_t row = 0; row < matrix.rows; ++row) {
      for (int64_t column = 0; column < matrix.columns; ++column) {
        const auto i = static_cast<size_t>(matrix.element(row, column));
        float p = split ? join_master(slice.high[i], slice.low[i]) : slice.master[i];
        p -= rate * x[place_in(matrix, row, column)];
        if (split) slice.low[i] = master_low(p);
        if (!split) slice.master[i] = p;
        if (!slice.high.empty()) slice.high[i] = master_high(p);
      }
    }
  }

  // out[rows, columns] = left[rows, inner] * right[inner, columns]; `turned`: right is stored
  // [columns, inner].
  static void multiply(const float* left, const float* right, float* out, int64_t rows,
                       int64_t inner, int64_t columns, bool turned) {
    std::fill(out, out + rows * columns, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < inner; ++k) {
        const float factor = left[i * inner + k];
        for (int64_t j = 0; j < columns; ++j) {
          out[i * columns + j] += factor * (turned ? right[j * inner + k] : right[k * columns + j]);
        }
      }
    }
  }

  float rate_ = 0.0f;
  float clip_ = 1.0f;
};

inline constexpr std::span<const StateRegion> kMuonBesideAdamW =
    kRegionsOfBoth<kAdamWRegions, MuonRule::kRegions>;

// Makes the rule of a run: matrices by MuonRule, tables and vectors by AdamW.
inline std::unique_ptr<UpdateRule> muon_beside_adamw() {
  return std::make_unique<TwoRules>(std::make_unique<AdamWRule>(AdamWOptions{}),
                                    std::make_unique<MuonRule>(), kMuonBesideAdamW,
                                    [](const ParamSpec&) { return true; });
}

// Gradients by update and parameter, of all ranks.
class GradientRecord {
 public:
  void add(int64_t update, const std::string& parameter, int64_t element, float value) {
    const std::lock_guard lock(mutex_);
    values_[update][parameter][element] = value;
  }
  std::map<int64_t, std::map<std::string, std::map<int64_t, float>>> values_;

 private:
  std::mutex mutex_;
};

class RecordedRule final : public UpdateRule {
 public:
  RecordedRule(std::unique_ptr<UpdateRule> rule, GradientRecord* record)
      : rule_(std::move(rule)), record_(record) {}

  std::span<const StateRegion> regions() const override { return rule_->regions(); }
  uint64_t seed() const override { return rule_->seed(); }
  int32_t group_of(const ParamSpec& parameter) const override {
    parameters_.emplace_back(parameter.name, rule_->group_of(parameter));
    return static_cast<int32_t>(parameters_.size()) - 1;
  }
  UpdateGrain grain_of(const ParamSpec& parameter) const override {
    return rule_->grain_of(parameter);
  }
  void stage(const StepUpdate& update) override {
    update_ = update.update;
    rule_->stage(update);
  }
  void apply(int32_t group, const UpdateSlice& slice) const override {
    const auto& [name, inner] = parameters_.at(static_cast<size_t>(group));
    for (size_t i = 0; i < slice.elements(); ++i) record(name, slice, static_cast<int64_t>(i));
    rule_->apply(inner, slice);
  }
  int64_t scratch_elements(int64_t rows, int64_t columns) const override {
    return rule_->scratch_elements(rows, columns);
  }
  void apply_matrix(int32_t group, const MatrixPlace& matrix, const UpdateSlice& slice,
                    std::span<float> scratch) const override {
    const auto& [name, inner] = parameters_.at(static_cast<size_t>(group));
    for (int64_t row = 0; row < matrix.rows; ++row) {
      for (int64_t column = 0; column < matrix.columns; ++column) {
        record(name, slice, matrix.element(row, column));
      }
    }
    rule_->apply_matrix(inner, matrix, slice, scratch);
  }

 private:
  void record(const std::string& name, const UpdateSlice& slice, int64_t element) const {
    const auto* gradient = reinterpret_cast<const float*>(slice.gradient.data());
    record_->add(update_, name, static_cast<int64_t>(slice.rounding.first_element) + element,
                 gradient[element]);
  }

  std::unique_ptr<UpdateRule> rule_;
  GradientRecord* record_;
  mutable std::vector<std::pair<std::string, int32_t>> parameters_;
  int64_t update_ = 0;
};

}  // namespace longshore
