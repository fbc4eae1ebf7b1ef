#include "offload/optimizer/update_rule.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {

void UpdateRule::apply_matrix(int32_t, const MatrixPlace&, const UpdateSlice&,
                              std::span<float>) const {
  LONGSHORE_CHECK(false) << "the update rule works on elements";
}

void keep_matrices_whole(ModelSpec& model, const UpdateRule& rule) {
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) {
      if (parameter.frozen || rule.grain_of(parameter) == UpdateGrain::kElements) continue;
      if (parameter.matrix_places().empty()) {
        throw ConfigError("optimizer.groups: '" + parameter.name +
                          "' holds no matrix, and its update needs whole matrices");
      }
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
