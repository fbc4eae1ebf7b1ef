// ModelSpec: what a model is made of, as data: units in forward order and their parameters.
// Made once by src/model (or by a library user for an own module); read by every other folder.
// Plain values without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"

namespace longshore {

// How `model.init = "random"` fills a parameter.
struct InitSpec {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal };
  Kind kind = Kind::kNormal;
  double standard_deviation = 0.02;  // of kNormal
  bool operator==(const InitSpec&) const = default;
};

// One parameter, in the shape in which the model's files store it and the units compute with it.
struct ParamSpec {
  std::string name;            // as in the model's files; unique in the model
  std::vector<int64_t> shape;  // every dimension >= 1
  bool frozen = false;         // neither gradient nor state
  InitSpec init;

  int64_t elements() const;  // product of the shape; checked when the spec was made
  bool operator==(const ParamSpec&) const = default;
};

// A parameter by owner.
struct ParamRef {
  UnitId unit;
  int32_t index = 0;  // into UnitSpec::parameters of that unit
  auto operator<=>(const ParamRef&) const = default;
};

// One tensor of the carry, as seen at a unit's output: [positions, elements_per_position].
struct CarryTensorSpec {
  int64_t elements_per_position = 0;
  bool operator==(const CarryTensorSpec&) const = default;
};

// What is gathered and freed together. Forward order is the order of ids.
struct UnitSpec {
  UnitId id;
  std::string name;  // "embedding", "block.3", "head"
  std::vector<ParamSpec> parameters;
  // Parameters of earlier units that this unit also uses (a tied head). In the unit's list of
  // parameters they follow the owned ones.
  std::vector<ParamRef> borrowed;
  std::vector<CarryTensorSpec> carry_out;  // empty for the last unit

  bool has_trainable() const;
  bool operator==(const UnitSpec&) const = default;
};

// A whole model. Invariants (checked by `validate_model_spec`): ids are 0..n-1 in order, names are
// unique, a borrowed parameter belongs to an earlier unit, the last unit has no carry_out.
struct ModelSpec {
  std::vector<UnitSpec> units;

  const UnitSpec& unit(UnitId id) const { return units.at(static_cast<size_t>(id.value)); }
  const ParamSpec& parameter(ParamRef ref) const {
    return unit(ref.unit).parameters.at(static_cast<size_t>(ref.index));
  }
  int64_t parameter_elements() const;  // tied parameters once
  int64_t trainable_elements() const;
  bool operator==(const ModelSpec&) const = default;
};

// Throws CheckFailure where an invariant of ModelSpec is broken.
void validate_model_spec(const ModelSpec& model);

}  // namespace longshore
