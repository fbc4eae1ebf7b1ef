#include "offload/optimizer/two_rules.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

bool are_of(std::span<const StateRegion> regions, std::span<const StateRegion> of, RegionUse use) {
  return std::ranges::equal(regions, of, [use](const StateRegion& region, StateRegion wanted) {
    wanted.use = use;
    return region == wanted;
  });
}

}  // namespace

TwoRules::TwoRules(std::unique_ptr<UpdateRule> elements, std::unique_ptr<UpdateRule> matrices,
                   std::span<const StateRegion> regions, Predicate takes)
    : elements_(std::move(elements)),
      matrices_(std::move(matrices)),
      regions_(regions),
      takes_(std::move(takes)) {
  const size_t count = elements_->regions().size();
  LONGSHORE_CHECK(count <= regions.size() &&
                  are_of(regions.first(count), elements_->regions(), RegionUse::kElements) &&
                  are_of(regions.subspan(count), matrices_->regions(), RegionUse::kMatrices))
      << "the regions are not those of the two rules";
  for (const StateRegion& region : regions) {
    LONGSHORE_CHECK(std::ranges::count(regions, region.name, &StateRegion::name) == 1)
        << "both rules keep " << region.name;
  }
}

uint64_t TwoRules::seed() const {
  const uint64_t elements = elements_->seed(), matrices = matrices_->seed();
  LONGSHORE_CHECK(elements == 0 || matrices == 0 || elements == matrices)
      << "the rules have the seeds " << elements << " and " << matrices;
  return elements == 0 ? matrices : elements;
}

int32_t TwoRules::group_of(const ParamSpec& parameter) const {
  const bool whole = grain_of(parameter) == UpdateGrain::kMatrices;
  return (whole ? matrices_ : elements_)->group_of(parameter);
}

UpdateGrain TwoRules::grain_of(const ParamSpec& parameter) const {
  return !parameter.matrix_places().empty() && takes_(parameter) ? UpdateGrain::kMatrices
                                                                 : UpdateGrain::kElements;
}

void TwoRules::stage(const StepUpdate& update) {
  elements_->stage(update);
  matrices_->stage(update);
}

void TwoRules::apply(int32_t group, const UpdateSlice& slice) const {
  elements_->apply(group, slice);
}

int64_t TwoRules::scratch_elements(int64_t rows, int64_t columns) const {
  return matrices_->scratch_elements(rows, columns);
}

void TwoRules::apply_matrix(int32_t group, const MatrixPlace& matrix, const UpdateSlice& slice,
                            std::span<float> scratch) const {
  matrices_->apply_matrix(group, matrix, slice, scratch);
}

}  // namespace longshore
