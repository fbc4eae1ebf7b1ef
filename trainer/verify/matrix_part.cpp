#include "trainer/verify/matrix_part.h"

namespace longshore {

std::vector<MatrixPart> matrix_parts(const ModelSpec& spec) {
  std::vector<MatrixPart> parts;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.stacked) {
        parts.push_back({&parameter, parameter.name, parameter.shape, 0, parameter.elements()});
        continue;
      }
      const std::vector<int64_t> shape(parameter.shape.begin() + 1, parameter.shape.end());
      const int64_t elements = parameter.elements() / parameter.shape[0];
      for (int64_t expert = 0; expert < parameter.shape[0]; ++expert) {
        parts.push_back({&parameter, parameter.name + "[" + std::to_string(expert) + "]", shape,
                         expert * elements, elements});
      }
    }
  }
  return parts;
}

}  // namespace longshore
