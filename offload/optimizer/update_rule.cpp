#include "offload/optimizer/update_rule.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "shard/state_format.h"

namespace longshore {

void UpdateRule::apply_matrix(int32_t, const MatrixPlace&, const UpdateSlice&,
                              std::span<float>) const {
  LONGSHORE_CHECK(false) << "the update rule works on elements";
}

namespace {

// Scales of 8-bit codes belong to blocks of elements, and a block may reach over two matrices,
// which are updated at once and may be on two ranks.
void check_regions_of_matrices(const UpdateRule& rule, const std::string& parameter) {
  for (const StateRegion& region : rule.regions()) {
    if (!is_kept(region.use, /*whole_matrices=*/true) || !region.format) continue;
    if (!has_scales(*region.format)) continue;
    throw ConfigError("optimizer.groups: '" + parameter +
                      "' is updated as whole matrices, and the rule keeps \"" +
                      std::string(region.name) +
                      "\" for it in 8 bits, whose blocks do not end with a matrix; keep it in fp32 "
                      "or bf16 (StateRegion::format)");
  }
}

}  // namespace

void keep_matrices_whole(ModelSpec& model, const UpdateRule& rule) {
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) {
      if (parameter.frozen || rule.grain_of(parameter) == UpdateGrain::kElements) continue;
      if (parameter.matrix_places().empty()) {
        throw ConfigError("optimizer.groups: '" + parameter.name +
                          "' holds no matrix, and its update needs whole matrices");
      }
      check_regions_of_matrices(rule, parameter.name);
      parameter.whole_matrices = true;
      check_whole_matrices(parameter);
    }
  }
}

MatrixScratch matrix_scratch(const ModelSpec& model, const ScratchElements& elements, int threads) {
  MatrixScratch scratch;
  for (const UnitSpec& unit : model.units) {
    int64_t matrices = 0;
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.frozen || !parameter.whole_matrices) continue;
      for (const MatrixPlace& place : parameter.matrix_places()) {
        ++matrices;
        scratch.elements = std::max(scratch.elements, elements(place.rows, place.columns));
      }
    }
    scratch.count = std::max(scratch.count, std::min<int64_t>(matrices, threads));
  }
  return scratch;
}

}  // namespace longshore
