#include "hf/weight_loader.h"

#include <algorithm>

#include "base/errors.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "hf/problem_list.h"

namespace longshore {
namespace {

constexpr int64_t kChunkElements = int64_t{1} << 16;

// Returns why a stored tensor cannot fill the parameter; empty if it can.
std::string mismatch_of(const ParamSpec& parameter, const TensorInfo& tensor) {
  if (tensor.shape != parameter.stored_shape()) {
    return "shape " + format_shape(tensor.shape) + ", but config.json makes it " +
           format_shape(parameter.stored_shape());
  }
  if (!model_dtype(tensor.dtype)) {
    return "dtype " + std::string(name_of(tensor.dtype)) +
           ": only F32, F16 and BF16 can be trained; take the model's unquantised directory";
  }
  return "";
}

// Fills `out` with values of a 16-bit type, chunk by chunk.
template <float (*to_float)(uint16_t)>
void read_16_bit(const SafetensorsFile& file, const TensorInfo& tensor, int64_t element_begin,
                 std::span<float> out) {
  std::vector<uint16_t> chunk(std::min(out.size(), static_cast<size_t>(kChunkElements)));
  while (!out.empty()) {
    const size_t count = std::min(out.size(), chunk.size());
    const std::span<uint16_t> part = std::span(chunk).first(count);
    file.read(tensor, element_begin * 2, std::as_writable_bytes(part));
    std::transform(part.begin(), part.end(), out.begin(), to_float);
    out = out.subspan(count);
    element_begin += static_cast<int64_t>(count);
  }
}

}  // namespace

void read_elements(const SafetensorsFile& file, const TensorInfo& tensor, int64_t element_begin,
                   std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  LONGSHORE_CHECK(element_begin >= 0 && count <= tensor.elements() &&
                  element_begin <= tensor.elements() - count)
      << tensor.name << ": elements from " << element_begin << ", " << count;
  const std::optional<DType> dtype = model_dtype(tensor.dtype);
  LONGSHORE_CHECK(dtype.has_value()) << tensor.name << ": " << name_of(tensor.dtype);
  switch (*dtype) {
    case DType::kF32:
      file.read(tensor, element_begin * 4, std::as_writable_bytes(out));
      return;
    case DType::kBF16:
      read_16_bit<bf16_to_float>(file, tensor, element_begin, out);
      return;
    case DType::kF16:
      read_16_bit<fp16_to_float>(file, tensor, element_begin, out);
      return;
  }
}

void read_elements(const ModelDirectory::TensorRef& ref, int64_t element_begin,
                   std::span<float> out) {
  if (ref.packed != nullptr) {
    ref.packed->read(element_begin, out);
  } else {
    read_elements(ref.file->file, *ref.tensor, element_begin, out);
  }
}

namespace {

// Returns the mean of a stored table's rows, as a row. Each column is summed in fp64 from the first
// row to the last; its mean is rounded to fp32 and then to the type of the file, so that an export
// in that type keeps it.
std::vector<float> mean_of_rows(const ModelDirectory::TensorRef& table) {
  const int64_t rows = table.tensor->shape.at(0), columns = table.tensor->shape.at(1);
  const int64_t most = std::max<int64_t>(1, kChunkElements / columns);
  std::vector<double> sums(static_cast<size_t>(columns));
  std::vector<float> chunk;
  for (int64_t row = 0; row < rows; row += most) {
    chunk.resize(static_cast<size_t>(std::min(most, rows - row) * columns));
    read_elements(table, row * columns, chunk);
    for (size_t begin = 0; begin < chunk.size(); begin += sums.size()) {
      for (size_t column = 0; column < sums.size(); ++column) {
        sums[column] += double{chunk[begin + column]};
      }
    }
  }
  const DType stored = *model_dtype(table.tensor->dtype);
  std::vector<float> mean(sums.size());
  std::ranges::transform(sums, mean.begin(), [rows, stored](double sum) {
    const auto value = static_cast<float>(sum / static_cast<double>(rows));
    switch (stored) {
      case DType::kF32:
        return value;
      case DType::kBF16:
        return bf16_to_float(float_to_bf16_nearest(value));
      case DType::kF16:
        return fp16_to_float(float_to_fp16_nearest(value));
    }
    return value;
  });
  return mean;
}

}  // namespace

bool SkipRule::matches(std::string_view name) const {
  return (!prefix.empty() || !suffix.empty()) && name.size() >= prefix.size() + suffix.size() &&
         name.starts_with(prefix) && name.ends_with(suffix);
}

WeightLoader::WeightLoader(const ModelDirectory& directory, const ModelSpec& spec,
                           const std::vector<SkipRule>& skip_rules) {
  ProblemList problems;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.adapter) continue;
      const ModelDirectory::TensorRef found = directory.find(parameter.name);
      const std::string where = ": tensor '" + printable(parameter.name) + "': ";
      if (!found) {
        problems.add(directory.path() + where + "missing; config.json makes it " +
                     format_shape(parameter.stored_shape()));
        continue;
      }
      const std::string mismatch = mismatch_of(parameter, *found.tensor);
      if (!mismatch.empty()) problems.add(found.file->file.path() + where + mismatch);
      parameters_.emplace(parameter.name, found);
      if (parameter.added_rows > 0) {
        added_elements_.emplace(parameter.name, parameter.added_rows * parameter.shape.at(1));
      }
    }
  }
  for (const ModelDirectory::TensorRef& ref : directory.tensors()) {
    const std::string& name = ref.tensor->name;
    if (parameters_.contains(name)) continue;
    const auto matches = [&name](const SkipRule& rule) { return rule.matches(name); };
    if (std::any_of(skip_rules.begin(), skip_rules.end(), matches)) {
      skipped_.push_back(name);
    } else {
      problems.add(ref.file->file.path() + ": tensor '" + printable(name) + "': shape " +
                   format_shape(ref.tensor->shape) + ", but the model that config.json describes " +
                   "has no such parameter");
    }
  }
  problems.throw_if_any();
}

ModelDirectory::TensorRef WeightLoader::at(const std::string& name) const {
  const auto found = parameters_.find(name);
  LONGSHORE_CHECK(found != parameters_.end()) << name;
  return found->second;
}

void WeightLoader::read_parameter(const std::string& name, int64_t element_begin,
                                  std::span<float> out) const {
  const ModelDirectory::TensorRef ref = at(name);
  const int64_t stored = ref.tensor->elements();
  const int64_t end = element_begin + static_cast<int64_t>(out.size());
  const auto added = added_elements_.find(name);
  if (added == added_elements_.end() || end <= stored) {
    return read_elements(ref, element_begin, out);
  }
  LONGSHORE_CHECK(element_begin >= 0 && end <= stored + added->second)
      << name << ": elements from " << element_begin << ", " << out.size();
  const auto in_file = static_cast<size_t>(std::max<int64_t>(0, stored - element_begin));
  if (in_file > 0) read_elements(ref, element_begin, out.first(in_file));
  const std::vector<float>& mean = mean_row(name);
  const auto first = static_cast<size_t>(element_begin);
  for (size_t i = in_file; i < out.size(); ++i) out[i] = mean[(first + i) % mean.size()];
}

const std::vector<float>& WeightLoader::mean_row(const std::string& name) const {
  const MutexLock lock(mutex_);
  std::vector<float>& mean = means_[name];
  if (mean.empty()) mean = mean_of_rows(at(name));
  return mean;
}

DType WeightLoader::stored_dtype(const std::string& name) const {
  return *model_dtype(at(name).tensor->dtype);
}

}  // namespace longshore
