// MatrixPart: the unit of tensor checks: a parameter, or one expert's matrix inside a parameter of
// all experts. Plain values; the spec must outlive them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

struct MatrixPart {
  const ParamSpec* parameter = nullptr;
  std::string name;            // the parameter's name, followed by "[3]" for the fourth expert
  std::vector<int64_t> shape;  // shape of this part
  int64_t begin = 0;           // index of its first element in the parameter
  int64_t elements = 0;
};

// Returns the parts of all parameters in the model's order.
std::vector<MatrixPart> matrix_parts(const ModelSpec& spec);

}  // namespace longshore
