// Checks of tensors: a model's values by themselves, and beside those of its base model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hf/model_directory.h"
#include "shard/unit_spec.h"
#include "trainer/model/model_source.h"
#include "trainer/verify/findings.h"

namespace longshore {

// TensorCheck: checks the values of every tensor of a model without another model: finite, not all
// equal, and of similar size as the same matrix in other layers. Reads the files once in bounded
// chunks on all cores.

// A matrix is unusual if its root mean square differs by this factor from the median over layers.
// Layers do differ, so smaller factors can only be detected against another model.
inline constexpr double kOddScale = 8.0;

void check_tensors(const ModelSource& source, Findings& findings);

// Compares every tensor with the hash that the export recorded. Does nothing for a directory that
// no export wrote.
void check_exported(const ModelDirectory& directory, Findings& findings);

// BaseComparison: compares a model's tensors with those of its base model. Fine-tuning changes each
// tensor a little; swapped, scaled or transposed tensors differ in recognizable ways. Reads 4,096
// values of each tensor; one thread.

// Closeness compares both models' values `a` and `b` of one tensor at the same positions.
struct Closeness {
  double distance = 0.0;  // |a - b| / |b|
  double scale = 1.0;     // the s that minimizes |a - s b|
  double residual = 0.0;  // |a - s b| / |a|
};
Closeness closeness(std::span<const float> a, std::span<const float> b);

// Reports tensors of `source` that are new, swapped, scaled, transposed or unrelated to the base's.
void compare_with_base(const ModelSource& source, const ModelSource& base, Findings& findings);

// MatrixPart: the unit of tensor checks: a parameter, or one expert's matrix inside a parameter of
// all experts. Plain values; the spec must outlive them.

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
