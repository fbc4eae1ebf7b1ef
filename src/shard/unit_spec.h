// ModelSpec: what a model is made of, as data: units in forward order and their parameters.
// Made once by src/model (or by a library user for an own module); read by every other folder.
// Plain values without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
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
// Or a piece of one: rows in a row of a parameter of that name, whose other rows are further
// pieces. What leaves the engine, or names an element of it, is in coordinates of the whole
// parameter.
struct ParamSpec {
  std::string name;            // as in the model's files; unique in the model, but for pieces
  std::vector<int64_t> shape;  // every dimension >= 1
  bool frozen = false;         // neither gradient nor state
  bool stacked = false;        // a row is a parameter of its own: that of one expert
  InitSpec init;
  int64_t first_row = 0;   // of a piece
  int64_t whole_rows = 0;  // of the parameter that this is a piece of; 0: this is all of it

  int64_t elements() const;       // product of the shape; checked when the spec was made
  ParamSpec whole() const;        // the parameter that this is a piece of
  int64_t first_element() const;  // in the whole parameter
  // Of matrices, not of vectors: decays by default, and may have narrow moments.
  bool is_matrix() const { return shape.size() >= (stacked ? 3U : 2U); }
  bool operator==(const ParamSpec&) const = default;
};

// A parameter by owner.
struct ParamRef {
  UnitId unit;
  int32_t index = 0;  // into UnitSpec::parameters of that unit
  auto operator<=>(const ParamRef&) const = default;
};

enum class CarryUse : uint8_t { kValue, kGradient };

// One tensor of the carry, as seen at a unit's output: [positions, elements_per_position].
struct CarryTensorSpec {
  int64_t elements_per_position = 0;
  bool wide = false;           // fp32, whatever the compute dtype
  bool wide_gradient = false;  // its gradient is, because several units add to it
  // The unit returns this tensor of its input itself, unchanged: it is kept once, and the unit's
  // part of its gradient is added to what flows back.
  std::optional<int32_t> passes = {};
  // The next unit reads its value in forward alone, as of a sum that it adds to: it is not kept,
  // but lies in one place that units write in turn. Backward finds zeros there.
  bool running = false;
  DType dtype(DType compute, CarryUse use) const {
    return wide || (wide_gradient && use == CarryUse::kGradient) ? DType::kF32 : compute;
  }
  Bytes bytes_per_position(DType compute, CarryUse use) const {
    return elements_per_position * width_of(dtype(compute, use));
  }
  bool operator==(const CarryTensorSpec&) const = default;
};

// What is gathered and freed together. Forward order is the order of ids.
struct UnitSpec {
  UnitId id;
  std::string name;  // "embedding", "block.3", "head"
  std::vector<ParamSpec> parameters;
  // Parameters of earlier units that this unit also uses (a tied head). In the unit's list of
  // parameters they follow the owned ones.
  std::vector<ParamRef> tied;
  std::vector<CarryTensorSpec> carry_out;  // empty for the last unit
  // Else only forward asks for the values of its parameters, as a lookup of rows does: they are not
  // fetched for backward. Of a unit with a backward of its own, which borrows nothing.
  bool backward_reads_parameters = true;

  bool has_trainable() const;
  Bytes carry_bytes_per_position(DType compute, CarryUse use) const;
  bool operator==(const UnitSpec&) const = default;
};

// A whole model. Invariants (checked by `validate_model_spec`): ids are 0..n-1 in order, names are
// unique, a tied parameter belongs to an earlier unit, the last unit has no carry_out. A tensor
// that passes is like the one that it is, which is kept; what the last unit reads is kept.
struct ModelSpec {
  std::vector<UnitSpec> units;

  std::vector<ParamSpec> whole_parameters() const;  // pieces as the parameter they are of
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
