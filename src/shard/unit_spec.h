// ModelSpec: a model as data: units in forward order and their parameters. src/model makes it once
// (or a library user, for an own module); all folders read it. Plain values without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/columns.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "shard/storage_type.h"

namespace longshore {

// How `model.init = "random"` fills a parameter.
struct InitSpec {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal, kUniform, kLogUniform };
  Kind kind = Kind::kNormal;
  double standard_deviation = 0.02;  // of kNormal
  // Values of kUniform lie between -bound and bound; those of kLogUniform are logarithms of values
  // between least and bound.
  double bound = 0.0;
  double least = 0.0;
  bool operator==(const InitSpec&) const = default;
};

// MatrixForm: which matrices a parameter holds. Without fields it is one matrix [outputs, inputs],
// and a stacked parameter one in each row.
struct MatrixForm {
  bool none = false;        // a table, whose rows belong to tokens or positions
  bool transposed = false;  // stored [inputs, outputs]
  // The outputs of several matrices in one: these many of the first, of the second, and so on,
  // again and again until all outputs are taken. Empty: one matrix.
  std::vector<int64_t> outputs = {};
  bool operator==(const MatrixForm&) const = default;
};

// The elements of one matrix in its parameter, counted from the parameter's first.
struct MatrixPlace {
  int64_t first = 0;
  int64_t rows = 0, columns = 0;  // outputs and inputs
  int64_t row_step = 0, column_step = 0;
  // So many rows follow each other; the next ones begin `group_step` behind their beginning.
  int64_t group_rows = 1, group_step = 0;

  int64_t elements() const { return rows * columns; }
  int64_t element(int64_t row, int64_t column) const {
    return first + row / group_rows * group_step + row % group_rows * row_step +
           column * column_step;
  }
  int64_t end() const { return element(rows - 1, columns - 1) + 1; }
};

// One parameter, in the shape in which the model's files store its values and the units compute
// with them. It may be a piece: consecutive rows of a larger parameter, whose other rows are other
// pieces with the same name. Names and offsets that leave the engine refer to the whole parameter.
struct ParamSpec {
  std::string name;            // the name in the model's files; unique in the model, except for
                               // pieces
  std::vector<int64_t> shape;  // every dimension >= 1
  bool frozen = false;         // no gradient and no state
  bool stacked = false;        // each row is one parameter: one expert's
  bool adapter = false;        // an adapter's matrix, which the model's files do not hold
  bool stays_fp32 = false;     // computed with in fp32 whatever the compute dtype, while frozen
  bool routes = false;         // a router's matrix, which is small and never packed
  // A table of which a position reads one row: its unit multiplies nothing by it.
  bool looked_up = false;
  // Rows at the end of a table that the model's files lack, because the run adds tokens: they begin
  // as the mean of the rows in the files. A piece has the number of the whole parameter.
  int64_t added_rows = 0;
  MatrixForm matrices = {};
  // The run's update rule needs each matrix on one rank (keep_matrices_whole).
  bool whole_matrices = false;
  double dropout = 0.0;  // the share of the matrix's inputs that training drops
  InitSpec init;
  // The packed type of a frozen matrix, or of each matrix of a stacked parameter, whose scales are
  // in its bytes (model/packed_model.h); nullopt: numbers.
  std::optional<StorageType> packed = {};
  int64_t first_row = 0;   // first row of a piece
  int64_t whole_rows = 0;  // rows of the whole parameter; 0: this is not a piece

  int64_t elements() const;                   // number of values
  ParamSpec whole() const;                    // the whole parameter that this is a piece of
  std::vector<int64_t> stored_shape() const;  // the whole parameter's shape in the model's files
  int64_t first_element() const;              // offset in the whole parameter
  // How a run of this compute dtype stores it. Of a trained one this is what the device reads; its
  // master is exact in every state format.
  StorageType storage(DType compute) const;
  // Returns the matrices in the order of their first elements; none of vectors, tables and taps of
  // convolutions.
  std::vector<MatrixPlace> matrix_places() const;
  // Matrices decay by default and may have narrow moments; vectors do neither.
  bool is_matrix() const { return shape.size() >= (stacked ? 3U : 2U); }
  bool operator==(const ParamSpec&) const = default;
};

// Throws ConfigError if the parameter is a piece that cuts one of its whole matrices.
void check_whole_matrices(const ParamSpec& parameter);

// Identifies a parameter by its owner.
struct ParamRef {
  UnitId unit;
  int32_t index = 0;  // into UnitSpec::parameters of that unit
  auto operator<=>(const ParamRef&) const = default;
};

enum class CarryUse : uint8_t { kValue, kGradient };

// KeptResults: which results of a unit's forward a plan keeps beside its activation checkpoint, so
// that backward need not compute them again. Each value keeps those of the values before it, too;
// they are in the order of the time that a byte saves.
enum class KeptResults : uint8_t {
  kNone,
  kAttention,  // attention's result and the log-sum-exp of its rows
  kHeads,      // queries, keys and values
  kMiddle,     // the sum between the halves of a block
  kMlp,        // the products that the MLP's activation reads
};

// One tensor of the carry at a unit's output: [rows of the axis, elements_per_position].
struct CarryTensorSpec {
  int64_t elements_per_position = 0;
  bool wide = false;           // fp32 whatever the compute dtype
  bool wide_gradient = false;  // its gradient is fp32, because several units add to it
  // The index of the input tensor that the unit returns here unchanged. That tensor is kept once,
  // and the unit's part of its gradient is added to the gradient that flows back.
  std::optional<int32_t> passes = {};
  // The next unit reads the value only in forward, as a running sum. No checkpoint keeps it: units
  // write one shared buffer in rotation, and backward finds zeros there.
  bool running = false;
  // Most later units read the value. It stays on the device from forward to backward, in a place of
  // its own, wherever the units' other inputs are kept.
  bool resident = false;
  RowAxis axis = RowAxis::kTokens;  // of its rows; plans and stores size those of tokens alone
  // The first value that keeps it, if this is a unit's result.
  KeptResults kept_from = KeptResults::kAttention;
  DType dtype(DType compute, CarryUse use) const {
    return wide || (wide_gradient && use == CarryUse::kGradient) ? DType::kF32 : compute;
  }
  Bytes bytes_per_position(DType compute, CarryUse use) const {
    return elements_per_position * width_of(dtype(compute, use));
  }
  bool operator==(const CarryTensorSpec&) const = default;
};

// The parameters that are gathered and freed together. Ids follow forward order.
struct UnitSpec {
  UnitId id;
  std::string name;  // "embedding", "block.3", "head"
  std::vector<ParamSpec> parameters;
  // Parameters of earlier units that this unit also uses (a tied head). They follow the owned ones
  // in the unit's parameter list.
  std::vector<ParamRef> tied;
  std::vector<CarryTensorSpec> carry_out;  // empty for the last unit
  // A plan may keep these results of the unit's forward (KeptResults). Empty for the last unit.
  std::vector<CarryTensorSpec> results = {};
  // If false, only forward reads parameter values (a row lookup), and backward does not fetch them.
  // Such a unit has its own backward and uses no tied parameters.
  bool backward_reads_parameters = true;

  bool has_trainable() const;
  bool has_frozen() const;
  Bytes carry_bytes_per_position(DType compute, CarryUse use) const;
  bool operator==(const UnitSpec&) const = default;
};

// A whole model. `validate_model_spec` checks: ids are 0..n-1 in order, names are unique, a tied
// parameter belongs to an earlier unit, the last unit has no carry_out and no results, a passed
// tensor equals its source's spec and is not `running`, and the last unit's input has no `running`
// tensor.
struct ModelSpec {
  std::vector<UnitSpec> units;

  std::vector<ParamSpec> whole_parameters() const;  // each parameter once, with its pieces joined
  const UnitSpec& unit(UnitId id) const { return units.at(static_cast<size_t>(id.value)); }
  const ParamSpec& parameter(ParamRef ref) const {
    return unit(ref.unit).parameters.at(static_cast<size_t>(ref.index));
  }
  int64_t parameter_elements() const;  // number of weights; tied parameters count once
  int64_t trainable_elements() const;
  bool has_dropout() const;  // a matrix drops inputs in training
  bool operator==(const ModelSpec&) const = default;
};

// Throws CheckFailure if an invariant of ModelSpec is broken.
void validate_model_spec(const ModelSpec& model);

}  // namespace longshore
