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
  if (tensor.shape != parameter.shape) {
    return "shape " + format_shape(tensor.shape) + ", but config.json makes it " +
           format_shape(parameter.shape);
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
                     format_shape(parameter.shape));
        continue;
      }
      const std::string mismatch = mismatch_of(parameter, *found.tensor);
      if (!mismatch.empty()) problems.add(found.file->file.path() + where + mismatch);
      parameters_.emplace(parameter.name, found);
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
  read_elements(at(name), element_begin, out);
}

DType WeightLoader::stored_dtype(const std::string& name) const {
  return *model_dtype(at(name).tensor->dtype);
}

}  // namespace longshore
