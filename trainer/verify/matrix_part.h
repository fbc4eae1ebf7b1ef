// MatrixPart: what a look at a model's tensors is about: a parameter, or one expert's matrix of a
// parameter that holds those of all experts. Plain values; the spec must outlive them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

struct MatrixPart {
  const ParamSpec* parameter = nullptr;
  std::string name;            // that of the parameter, and "[3]" for the fourth expert's
  std::vector<int64_t> shape;  // of this part
  int64_t begin = 0;           // its first element in the parameter
  int64_t elements = 0;
};

// Of all parameters, in the model's order.
std::vector<MatrixPart> matrix_parts(const ModelSpec& spec);

}  // namespace longshore
