// TwoRules: two update rules in one run, as every use of Muon has them: matrices by one that needs
// them whole, all other parameters by one that works on elements. Both may have parameters in one
// unit, and each keeps its own regions beside its own. Owned by the pipeline; see UpdateRule.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <span>

#include "offload/optimizer/update_rule.h"

namespace longshore {

// The list of a run that has both: the regions of the rule of elements, then those of the rule of
// matrices. The arguments are constants of arrays, such as kAdamWRegions.
template <const auto& kElements, const auto& kMatrices>
inline constexpr auto kRegionsOfBoth = [] {
  constexpr size_t kFirst = std::size(kElements), kAll = kFirst + std::size(kMatrices);
  std::array<StateRegion, kAll> both = {};
  for (size_t i = 0; i < kAll; ++i) {
    both[i] = i < kFirst ? kElements[i] : kMatrices[i - kFirst];
    both[i].use = i < kFirst ? RegionUse::kElements : RegionUse::kMatrices;
  }
  return both;
}();

class TwoRules final : public UpdateRule {
 public:
  using Predicate = std::function<bool(const ParamSpec& parameter)>;

  // `regions` is kRegionsOfBoth of the rules' lists and outlives this object. `takes` says which
  // of the parameters that hold matrices go to `matrices`.
  TwoRules(std::unique_ptr<UpdateRule> elements, std::unique_ptr<UpdateRule> matrices,
           std::span<const StateRegion> regions, Predicate takes);

  std::span<const StateRegion> regions() const override { return regions_; }
  // Returns the run's seed, which a rule that needs none leaves out.
  uint64_t seed() const override;
  // Returns the group of the rule that has the parameter.
  int32_t group_of(const ParamSpec& parameter) const override;
  UpdateGrain grain_of(const ParamSpec& parameter) const override;
  void stage(const StepUpdate& update) override;
  void apply(int32_t group, const UpdateSlice& slice) const override;
  int64_t scratch_elements(int64_t rows, int64_t columns) const override;
  void apply_matrix(int32_t group, const MatrixPlace& matrix, const UpdateSlice& slice,
                    std::span<float> scratch) const override;

 private:
  std::unique_ptr<UpdateRule> elements_, matrices_;
  std::span<const StateRegion> regions_;
  Predicate takes_;
};

}  // namespace longshore
