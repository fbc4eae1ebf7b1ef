#include "shard/unit_spec.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/errors.h"

namespace longshore {

int64_t ParamSpec::elements() const {
  int64_t product = 1;
  for (int64_t dimension : shape) product *= dimension;
  return product;
}

ParamSpec ParamSpec::whole() const {
  ParamSpec all = *this;
  if (whole_rows > 0) all.shape.front() = whole_rows;
  all.first_row = all.whole_rows = 0;
  return all;
}

std::vector<int64_t> ParamSpec::stored_shape() const {
  std::vector<int64_t> stored = whole().shape;
  if (added_rows > 0) stored.front() -= added_rows;
  return stored;
}

int64_t ParamSpec::first_element() const {
  return first_row == 0 ? 0 : first_row * (elements() / shape.front());
}

std::vector<MatrixPlace> ParamSpec::matrix_places() const {
  if (matrices.none || shape.size() != (stacked ? 3U : 2U)) return {};
  const int64_t count = stacked ? shape.front() : 1;
  const int64_t stored_rows = shape[shape.size() - 2], stored_columns = shape.back();
  const int64_t outputs = matrices.transposed ? stored_columns : stored_rows;
  const int64_t output_step = matrices.transposed ? 1 : stored_columns;
  std::vector<int64_t> widths = matrices.outputs;
  if (widths.empty()) widths = {outputs};
  const int64_t turn = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  LONGSHORE_CHECK(turn > 0 && outputs % turn == 0) << name << " has " << outputs << " outputs";
  std::vector<MatrixPlace> places;
  for (int64_t i = 0; i < count; ++i) {
    int64_t first = i * stored_rows * stored_columns;
    for (const int64_t width : widths) {
      places.push_back({.first = first,
                        .rows = width * (outputs / turn),
                        .columns = matrices.transposed ? stored_rows : stored_columns,
                        .row_step = output_step,
                        .column_step = matrices.transposed ? stored_columns : 1,
                        .group_rows = width,
                        .group_step = turn * output_step});
      first += width * output_step;
    }
  }
  return places;
}

void check_whole_matrices(const ParamSpec& parameter) {
  if (!parameter.whole_matrices || parameter.whole_rows == 0 || parameter.stacked) return;
  throw ConfigError("fsdp.units cuts '" + parameter.name +
                    "' into rows, and the update rule needs its whole matrices; use units of whole "
                    "blocks, or another rule for it in optimizer.groups");
}

StorageType ParamSpec::storage(DType compute) const {
  if (packed) return *packed;
  return frozen && stays_fp32 ? StorageType::kF32 : storage_of(compute);
}

bool UnitSpec::has_trainable() const {
  for (const ParamSpec& parameter : parameters) {
    if (!parameter.frozen) return true;
  }
  return false;
}

bool UnitSpec::has_frozen() const {
  return std::ranges::any_of(parameters, &ParamSpec::frozen);
}

Bytes UnitSpec::carry_bytes_per_position(DType compute, CarryUse use) const {
  Bytes sum = 0;
  for (const CarryTensorSpec& tensor : carry_out) {
    sum += tensor.bytes_per_position(compute, use);
  }
  return sum;
}

std::vector<ParamSpec> ModelSpec::whole_parameters() const {
  std::vector<ParamSpec> parameters;
  for (const UnitSpec& unit : units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.first_row == 0) parameters.push_back(parameter.whole());
    }
  }
  return parameters;
}

bool ModelSpec::has_dropout() const {
  for (const UnitSpec& unit : units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.dropout > 0.0) return true;
    }
  }
  return false;
}

int64_t ModelSpec::parameter_elements() const {
  int64_t sum = 0;
  for (const UnitSpec& unit : units) {
    for (const ParamSpec& parameter : unit.parameters) sum += parameter.elements();
  }
  return sum;
}

int64_t ModelSpec::trainable_elements() const {
  int64_t sum = 0;
  for (const UnitSpec& unit : units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.frozen) sum += parameter.elements();
    }
  }
  return sum;
}

namespace {

// `in` is the unit's input; `to_last` means that the last unit reads its carry_out.
void validate_carry(const UnitSpec& unit, const std::vector<CarryTensorSpec>& in, bool to_last) {
  std::set<int32_t> passed;
  for (size_t i = 0; i < unit.carry_out.size(); ++i) {
    const CarryTensorSpec& tensor = unit.carry_out[i];
    const std::string where = "carry tensor " + std::to_string(i) + " of unit " + unit.name;
    LONGSHORE_CHECK(tensor.axis == RowAxis::kTokens) << where << " has rows that are not tokens";
    LONGSHORE_CHECK(!tensor.running || !to_last) << where << " is running, and the last unit's";
    LONGSHORE_CHECK(!tensor.running || !tensor.resident) << where << " is running, and resident";
    if (!tensor.passes) continue;
    LONGSHORE_CHECK(*tensor.passes >= 0 && *tensor.passes < static_cast<int32_t>(in.size()))
        << where << " passes tensor " << *tensor.passes << " of " << in.size();
    CarryTensorSpec same = in[static_cast<size_t>(*tensor.passes)];
    LONGSHORE_CHECK(!tensor.running && !same.running) << where << " passes, and is running";
    same.passes = tensor.passes;
    LONGSHORE_CHECK(tensor == same) << where << " is not like the tensor that it passes";
    LONGSHORE_CHECK(passed.insert(*tensor.passes).second) << where << " passes another's tensor";
  }
}

}  // namespace

void validate_model_spec(const ModelSpec& model) {
  LONGSHORE_CHECK(!model.units.empty()) << "a model has at least one unit";
  std::set<std::pair<std::string, int64_t>> names;  // name and first row
  std::map<std::string, bool> whole;
  for (size_t i = 0; i < model.units.size(); ++i) {
    const UnitSpec& unit = model.units[i];
    LONGSHORE_CHECK(unit.id.value == static_cast<int32_t>(i)) << "unit " << unit.name;
    LONGSHORE_CHECK(unit.carry_out.empty() == (i + 1 == model.units.size())) << unit.name;
    LONGSHORE_CHECK(unit.results.empty() || i + 1 < model.units.size()) << unit.name;
    validate_carry(unit, i == 0 ? std::vector<CarryTensorSpec>() : model.units[i - 1].carry_out,
                   /*to_last=*/i + 2 == model.units.size());
    LONGSHORE_CHECK(unit.backward_reads_parameters ||
                    (unit.tied.empty() && i + 1 < model.units.size()))
        << unit.name << " runs backward without parameters";
    for (const ParamSpec& parameter : unit.parameters) {
      LONGSHORE_CHECK(!parameter.packed ||
                      (parameter.frozen && parameter.is_matrix() && is_packed(*parameter.packed)))
          << parameter.name << " is packed";
      const bool is_whole = parameter.whole_rows == 0;
      const bool unique = names.emplace(parameter.name, parameter.first_row).second &&
                          whole.try_emplace(parameter.name, is_whole).first->second == is_whole;
      LONGSHORE_CHECK(unique && (!is_whole || parameter.first_row == 0)) << parameter.name;
      int64_t product = 1;
      for (int64_t dimension : parameter.shape) {
        LONGSHORE_CHECK(dimension >= 1) << parameter.name;
        const auto next = checked_multiply(product, dimension);
        LONGSHORE_CHECK(next.has_value()) << parameter.name << " is too large";
        product = *next;
      }
    }
    for (ParamRef ref : unit.tied) {
      LONGSHORE_CHECK(ref.unit < unit.id) << unit.name << " uses a tied parameter of a later unit";
      const auto& owner = model.unit(ref.unit);
      LONGSHORE_CHECK(ref.index >= 0 && ref.index < static_cast<int32_t>(owner.parameters.size()));
    }
  }
}

}  // namespace longshore
