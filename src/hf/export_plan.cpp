#include "hf/export_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <unordered_map>

#include "base/errors.h"
#include "base/texts.h"
#include "hf/problem_list.h"
#include "hf/tensor_dtype.h"
#include "hf/weight_index.h"

namespace longshore {
namespace {

using ParameterTable = std::unordered_map<std::string_view, const ParamSpec*>;

ParameterTable parameters_by_name(const ModelSpec& spec) {
  ParameterTable table;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) table[parameter.name] = &parameter;
  }
  return table;
}

Bytes bytes_of_tensor(const SafetensorsWriter::Tensor& tensor) {
  Bytes bytes = width_of(tensor.dtype);
  for (const int64_t dimension : tensor.shape) bytes *= dimension;
  return bytes;
}

void add_tensor(ExportFile& file, ExportTensor tensor) {
  file.tensor_bytes += bytes_of_tensor(tensor.target);
  file.tensors.push_back(std::move(tensor));
}

// transformers refuses files whose metadata does not name the framework.
SafetensorsMetadata with_format(SafetensorsMetadata metadata) {
  for (const auto& [key, value] : metadata) {
    if (key == "format") return metadata;
  }
  metadata.emplace_back("format", "pt");
  return metadata;
}

// Lists the parameters that the source lacks in their shape and a trainable type.
ProblemList missing_from(const ModelDirectory& source, const ModelSpec& spec) {
  ProblemList problems;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      const ModelDirectory::TensorRef found = source.find(parameter.name);
      if (found && found.tensor->shape == parameter.shape && model_dtype(found.tensor->dtype)) {
        continue;
      }
      problems.add(source.path() + ": tensor '" + printable(parameter.name) + "': not there as " +
                   format_shape(parameter.shape) + ", so that it cannot be " +
                   "exported the same way");
    }
  }
  return problems;
}

ExportTensor plan_tensor(const ModelDirectory::TensorRef& ref, const ParamSpec* parameter,
                         const ExportOptions& options) {
  ExportTensor tensor{.target = {ref.tensor->name, ref.tensor->dtype, ref.tensor->shape},
                      .values = ExportTensor::Values::kSourceBytes,
                      .stored = ref};
  if (parameter == nullptr) return tensor;
  tensor.parameter = parameter->name;
  if (options.dtype) tensor.target.dtype = tensor_dtype(*options.dtype);
  if (!parameter->frozen || !options.pretrained) {
    tensor.values = ExportTensor::Values::kReader;
  } else if (tensor.target.dtype != ref.tensor->dtype || ref.packed != nullptr) {
    tensor.values = ExportTensor::Values::kSource;
  }
  return tensor;
}

ExportPlan plan_like_source(const ModelDirectory& source, const ModelSpec& spec,
                            const ExportOptions& options) {
  const ParameterTable parameters = parameters_by_name(spec);
  ExportPlan plan;
  for (const auto& stored : source.files()) {
    ExportFile file{stored->name, with_format(stored->file.metadata()), {}, 0};
    for (const TensorInfo& tensor : stored->file.tensors()) {
      const auto copied = options.copies.find(tensor.name);
      const auto found =
          parameters.find(copied == options.copies.end() ? tensor.name : copied->second);
      const ParamSpec* const parameter = found == parameters.end() ? nullptr : found->second;
      add_tensor(file, plan_tensor({stored.get(), &tensor}, parameter, options));
      if (file.tensors.back().target.dtype != tensor.dtype) plan.config_dtype = options.dtype;
    }
    plan.tensor_bytes += file.tensor_bytes;
    plan.files.push_back(std::move(file));
  }
  if (!source.index_text().empty()) {
    plan.index_text = source.index_total_size() == plan.tensor_bytes
                          ? source.index_text()
                          : with_total_size(source.index_text(), plan.tensor_bytes);
  }
  return plan;
}

// Returns whether all MXFP4 tensors can stay, because config.json applies to all of them at once.
bool keeps_mxfp4(const ModelDirectory& source, const ModelSpec& spec,
                 const ExportOptions& options) {
  if (!options.pretrained || options.dtype) return false;
  const ParameterTable parameters = parameters_by_name(spec);
  return std::ranges::all_of(source.tensors(), [&](const ModelDirectory::TensorRef& ref) {
    if (ref.packed == nullptr) return true;
    const auto found = parameters.find(ref.tensor->name);
    return found == parameters.end() || found->second->frozen;
  });
}

std::string split_name(size_t number, size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return name.data();
}

void name_files(ExportPlan& plan) {
  if (plan.files.size() == 1) {
    plan.files.front().name = kSingleWeightsName;
    return;
  }
  WeightIndex index;
  index.total_size = plan.tensor_bytes;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    ExportFile& file = plan.files[i];
    file.name = split_name(i + 1, plan.files.size());
    for (const ExportTensor& tensor : file.tensors) {
      index.tensors_of_file[file.name].push_back(tensor.target.name);
    }
  }
  plan.index_text = format_weight_index(index);
}

// Adds to the last file, or starts another if that would exceed the limit.
void add_to_split(ExportPlan& plan, ExportTensor tensor, Bytes max_file_bytes) {
  const Bytes bytes = bytes_of_tensor(tensor.target);
  const bool full = !plan.files.empty() && !plan.files.back().tensors.empty() &&
                    plan.files.back().tensor_bytes + bytes > max_file_bytes;
  if (plan.files.empty() || full) plan.files.push_back({"", {{"format", "pt"}}, {}, 0});
  add_tensor(plan.files.back(), std::move(tensor));
  plan.tensor_bytes += bytes;
}

// Keeps the source's tensor order. MXFP4 tensors become bf16 under their parameters' names, which
// is four times as large, so the files are split anew.
ExportPlan plan_unquantised(const ModelDirectory& source, const ModelSpec& spec,
                            const ExportOptions& options) {
  const ParameterTable parameters = parameters_by_name(spec);
  ExportPlan plan;
  plan.config_dtype = options.dtype;
  for (const ModelDirectory::TensorRef& ref : source.tensors()) {
    const auto copied = options.copies.find(ref.tensor->name);
    const auto found =
        parameters.find(copied == options.copies.end() ? ref.tensor->name : copied->second);
    add_to_split(plan,
                 plan_tensor(ref, found == parameters.end() ? nullptr : found->second, options),
                 options.max_file_bytes);
  }
  name_files(plan);
  return plan;
}

// Puts the parameters in the model's order into files of at most `max_file_bytes`.
ExportPlan plan_new_files(const ModelDirectory& source, const ModelSpec& spec,
                          const ExportOptions& options) {
  const std::optional<DType> named = config_dtype(source.config());
  const DType dtype = options.dtype.value_or(named.value_or(DType::kF32));
  ExportPlan plan;
  if (named && *named != dtype) plan.config_dtype = dtype;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      ExportTensor tensor;
      tensor.target = {parameter.name, tensor_dtype(dtype), parameter.shape};
      tensor.parameter = parameter.name;
      add_to_split(plan, std::move(tensor), options.max_file_bytes);
    }
  }
  name_files(plan);
  return plan;
}

}  // namespace

ExportPlan plan_export(const ModelDirectory& source, const ModelSpec& spec,
                       const ExportOptions& options) {
  const ProblemList missing = missing_from(source, spec);
  if (options.pretrained) missing.throw_if_any();
  const bool unquantised =
      source.mxfp4() && !(missing.empty() && keeps_mxfp4(source, spec, options));
  ExportPlan plan = !missing.empty() ? plan_new_files(source, spec, options)
                    : unquantised    ? plan_unquantised(source, spec, options)
                                     : plan_like_source(source, spec, options);
  plan.unquantised = unquantised;
  plan.card = options.card;
  plan.texts = options.texts;
  plan.left_out = options.left_out;
  return plan;
}

}  // namespace longshore
