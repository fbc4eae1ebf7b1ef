#include "hf/export_plan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/texts.h"
#include "hf/adapter_directory.h"
#include "hf/directory_entry.h"
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
      const std::vector<int64_t> shape = parameter.stored_shape();
      if (found && found.tensor->shape == shape && model_dtype(found.tensor->dtype)) continue;
      problems.add(source.path() + ": tensor '" + printable(parameter.name) + "': not there as " +
                   format_shape(shape) + ", so that it cannot be " + "exported the same way");
    }
  }
  return problems;
}

ExportTensor plan_tensor(const ModelDirectory::TensorRef& ref, const ParamSpec* parameter,
                         const ExportOptions& options) {
  ExportTensor tensor{.target = {ref.tensor->name, ref.tensor->dtype, ref.tensor->shape},
                      .values = ExportTensor::Values::kSourceBytes,
                      .stored = ref};
  if (parameter == nullptr) {
    if (ref.packed != nullptr) tensor.values = ExportTensor::Values::kSource;
    return tensor;
  }
  tensor.parameter = parameter->name;
  tensor.target.shape = parameter->shape;  // with the rows that the run added
  if (options.dtype) tensor.target.dtype = tensor_dtype(*options.dtype);
  if (!parameter->frozen || parameter->added_rows > 0 || !options.pretrained) {
    tensor.values = ExportTensor::Values::kReader;
    if (parameter->stays_fp32) tensor.target.dtype = TensorDType::kF32;
  } else if (tensor.target.dtype != ref.tensor->dtype || ref.packed != nullptr) {
    tensor.values = ExportTensor::Values::kSource;
  }
  return tensor;
}

// Part: a stored tensor that holds a part of a packed one.
struct Part {
  ModelDirectory::TensorRef whole;
  bool codes = false;  // codes come first among the parts
};

// Returns the parts of the source's packed tensors by their names in the files.
std::unordered_map<std::string_view, Part> packed_parts(const ModelDirectory& source) {
  std::unordered_map<std::string_view, Part> parts;
  for (const ModelDirectory::TensorRef& ref : source.tensors()) {
    if (ref.packed == nullptr) continue;
    const std::vector<PackedTensor::Part> stored = ref.packed->parts();
    for (size_t i = 0; i < stored.size(); ++i) parts[stored[i].tensor->name] = {ref, i == 0};
  }
  return parts;
}

// Plans the stored tensor `ref`, which is a part of a packed one.
ExportTensor plan_part(const ModelDirectory::TensorRef& ref, const Part& part,
                       const ParamSpec* parameter) {
  ExportTensor tensor{.target = {ref.tensor->name, ref.tensor->dtype, ref.tensor->shape},
                      .values = ExportTensor::Values::kSourceBytes,
                      .stored = ref};
  if (parameter == nullptr || parameter->frozen) return tensor;
  tensor.parameter = parameter->name;
  tensor.values = part.codes ? ExportTensor::Values::kCodes : ExportTensor::Values::kScales;
  tensor.stored = part.whole;
  return tensor;
}

// Keeps the source's files, names and shapes. Packed tensors stay packed.
ExportPlan plan_like_source(const ModelDirectory& source, const ModelSpec& spec,
                            const ExportOptions& options) {
  const ParameterTable parameters = parameters_by_name(spec);
  const std::unordered_map<std::string_view, Part> parts = packed_parts(source);
  const auto parameter_of = [&parameters](std::string_view name) {
    const auto found = parameters.find(name);
    return found == parameters.end() ? nullptr : found->second;
  };
  ExportPlan plan;
  for (const auto& stored : source.files()) {
    ExportFile file{stored->name, with_format(stored->file.metadata()), {}, 0};
    for (const TensorInfo& tensor : stored->file.tensors()) {
      if (const auto part = parts.find(tensor.name); part != parts.end()) {
        const std::string& whole = part->second.whole.tensor->name;
        add_tensor(file, plan_part({stored.get(), &tensor}, part->second, parameter_of(whole)));
        continue;
      }
      const auto copied = options.copies.find(tensor.name);
      const std::string& name = copied == options.copies.end() ? tensor.name : copied->second;
      add_tensor(file, plan_tensor({stored.get(), &tensor}, parameter_of(name), options));
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

// Throws ConfigError if the packed parameters cannot be packed again.
void check_published(const ModelDirectory& source, const ModelSpec& spec,
                     const ExportOptions& options) {
  const std::string problem = published_form_problem(source, options.pretrained);
  if (!problem.empty()) throw ConfigError(problem);
  LONGSHORE_CHECK(!options.dtype) << "a published form has its own types";
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      const ModelDirectory::TensorRef found = source.find(parameter.name);
      if (!found || found.packed == nullptr || found.tensor->shape == parameter.shape) continue;
      throw ConfigError(source.path() + ": tensor '" + printable(parameter.name) +
                        "' is packed as " + format_shape(found.tensor->shape) +
                        ", and the run has it as " + format_shape(parameter.shape) +
                        ", which does not divide into the published blocks; export it in bf16");
    }
  }
}

// Returns whether all packed tensors can stay packed; config.json declares one format for all of
// them. Without ExportOptions::published only MXFP4 stays packed, and only if it is untouched,
// because programs that train from an export need bf16.
bool keeps_packed(const ModelDirectory& source, const ModelSpec& spec,
                  const ExportOptions& options) {
  if (options.published) return true;
  if (!options.pretrained || options.dtype) return false;
  if (source.quantisation() != Quantisation::kMxfp4) return false;
  const ParameterTable parameters = parameters_by_name(spec);
  return std::ranges::all_of(source.tensors(), [&](const ModelDirectory::TensorRef& ref) {
    if (ref.packed == nullptr) return true;
    const auto found = parameters.find(ref.tensor->name);
    return found == parameters.end() || found->second->frozen;
  });
}

std::string split_name(size_t number, size_t count) {
  return formatted("model-%05zu-of-%05zu.safetensors", number, count);
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

// Keeps the source's tensor order. Packed tensors become bf16 under their parameters' names, which
// is larger, so the files are split again.
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
      tensor.target = {parameter.name,
                       parameter.stays_fp32 ? TensorDType::kF32 : tensor_dtype(dtype),
                       parameter.shape};
      tensor.parameter = parameter.name;
      add_to_split(plan, std::move(tensor), options.max_file_bytes);
    }
  }
  name_files(plan);
  return plan;
}

// Returns whether a file of the source describes how texts become tokens.
bool is_of_tokenizer(std::string_view name) {
  constexpr std::array<std::string_view, 7> kBeginnings = {
      "tokenizer", "special_tokens_map", "added_tokens",  "vocab",
      "merges",    "chat_template",      kTemplatesFolder};
  return std::ranges::any_of(kBeginnings,
                             [&](std::string_view begin) { return name.starts_with(begin); });
}

// The values are the fp32 masters, whatever the model's type: an adapter is small, and PEFT keeps
// adapters in fp32 too.
ExportPlan plan_adapter(const ModelDirectory& source, const ModelSpec& spec,
                        const ExportOptions& options) {
  ExportPlan plan;
  plan.adapter = true;
  ExportFile file{std::string(kAdapterWeightsName), {{"format", "pt"}}, {}, 0};
  const auto add = [&file](const std::string& name, const ParamSpec& parameter) {
    add_tensor(file, {.target = {name, TensorDType::kF32, parameter.shape},
                      .parameter = parameter.name,
                      .values = ExportTensor::Values::kReader,
                      .stored = {}});
  };
  for (const ParamSpec& parameter : spec.whole_parameters()) {
    if (parameter.frozen) continue;
    add(options.adapter->names.at(parameter.name), parameter);
    for (const auto& [name, copied] : options.adapter->copies) {
      if (copied == parameter.name) add(name, parameter);
    }
  }
  plan.tensor_bytes = file.tensor_bytes;
  plan.files.push_back(std::move(file));
  plan.card = options.card;
  plan.texts = options.texts;
  plan.texts.erase("config.json");
  plan.texts.erase("generation_config.json");
  plan.texts[std::string(kAdapterConfigName)] = options.adapter->config;
  plan.left_out = options.left_out;
  for (const std::string& name : source.companion_files()) {
    if (!is_of_tokenizer(name)) plan.left_out.insert(name);
  }
  return plan;
}

constexpr Bytes kMaxListBytes = 16 * kMiB;

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

OwnFile own_file(const std::string& name, const struct stat& status) {
  return {.name = name,
          .device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .changed_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

uint64_t hash_of(const UniqueFd& fd) {
  Hasher hasher;
  read_in_pieces(fd, [&hasher](std::span<const std::byte> piece) { hasher.update(piece); });
  return hasher.digest();
}

bool is_unchanged(const std::string& path, const struct stat& status, const ExportedFile& listed) {
  if (status.st_size != listed.bytes) return false;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC), path);
  if (!fd.valid()) return false;  // the writer of a file can read it
  return hash_of(fd) == listed.hash;
}

// Sorts a folder's entries into `contents`; `prefix` is "" or the folder's name with "/".
void add_entries(const std::string& directory, const std::string& prefix, const ExportList& list,
                 ExportContents& contents) {
  for (const std::string& entry : list_entries(open_directory(directory + "/" + prefix))) {
    const std::string name = prefix + entry;
    const std::string path = directory + "/" + name;
    const std::optional<struct stat> status = status_of(path);
    if (!status) continue;
    if (S_ISDIR(status->st_mode) && name == kTemplatesFolder) {
      add_entries(directory, name + "/", list, contents);
      continue;
    }
    if (!S_ISREG(status->st_mode)) {
      (S_ISLNK(status->st_mode) ? contents.foreign : contents.folders).push_back(name);
      continue;
    }
    const auto listed = list.files.find(name);
    const bool own = name == kExportListName ||
                     (listed != list.files.end() && is_unchanged(path, *status, listed->second));
    if (own) {
      contents.own.push_back(own_file(name, *status));
    } else {
      contents.foreign.push_back(name);
    }
  }
}

bool same_file(const std::string& path, const std::string& other) {
  const std::optional<struct stat> a = status_of(path), b = status_of(other);
  return a && b && a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

}  // namespace

std::string published_form_problem(const ModelDirectory& source, bool pretrained) {
  constexpr const char* kInstead = "; export it in bf16, which programs can pack";
  const std::string name = printable(source.path());
  if (!pretrained) return name + ": the run starts from random weights, not from published ones";
  switch (source.quantisation()) {
    case Quantisation::kMxfp4:
    case Quantisation::kFp8:
      return "";
    case Quantisation::kNone:
      return name +
             " was not published in a packed format (its config.json has no "
             "quantization_config), so that there is none to go back to; export it in bf16";
    case Quantisation::kNf4:
    case Quantisation::kNf4F32:
      return name + " was published in bitsandbytes' NF4, which is read and not written" + kInstead;
  }
  return "";
}

ExportPlan plan_export(const ModelDirectory& source, const ModelSpec& spec,
                       const ExportOptions& options) {
  if (options.adapter) return plan_adapter(source, spec, options);
  if (options.published) check_published(source, spec, options);
  const ProblemList missing = missing_from(source, spec);
  if (options.pretrained) missing.throw_if_any();
  const bool unquantised =
      source.quantised() && !(missing.empty() && keeps_packed(source, spec, options));
  ExportPlan plan = !missing.empty() ? plan_new_files(source, spec, options)
                    : unquantised    ? plan_unquantised(source, spec, options)
                                     : plan_like_source(source, spec, options);
  plan.unquantised = unquantised;
  plan.power_scales = has_power_scales(source.config());
  plan.vocabulary = options.vocabulary;
  plan.card = options.card;
  plan.texts = options.texts;
  plan.left_out = options.left_out;
  return plan;
}

void write_export_list(const std::string& directory, const ExportList& list) {
  Json files = Json::object();
  for (const auto& [name, file] : list.files) {
    files[name] = {{"bytes", file.bytes}, {"xxh3", hash_text(file.hash)}};
  }
  Json tensors = Json::object();
  for (const auto& [name, hash] : list.tensors) tensors[name] = hash_text(hash);
  const Json object = {
      {"about", "what longshore wrote here; it replaces these files alone, while unchanged"},
      {"files", std::move(files)},
      {"tensors", std::move(tensors)}};
  write_file_durably(directory + "/" + kExportListName, json_text(object, 1) + "\n");
}

ExportList read_export_list(const std::string& directory) {
  const std::string path = directory + "/" + kExportListName;
  const std::optional<struct stat> status = status_of(path);
  if (!status || !S_ISREG(status->st_mode)) return {};
  ExportList list;
  try {
    const Json object = read_json_file(path, {.max_bytes = kMaxListBytes});
    for (const auto& [name, file] : object.at("files").items()) {
      const std::optional<uint64_t> hash = parse_hash(file.at("xxh3").get<std::string>());
      if (hash) list.files[name] = {.bytes = file.at("bytes").get<Bytes>(), .hash = *hash};
    }
    const Json tensors = object.value("tensors", Json::object());
    for (const auto& [name, text] : tensors.items()) {
      const std::optional<uint64_t> hash = parse_hash(text.get<std::string>());
      if (hash) list.tensors[name] = *hash;
    }
  } catch (const std::exception&) {
    return {};  // without a list, everything is foreign
  }
  return list;
}

ExportContents read_export_contents(const std::string& directory) {
  ExportContents contents;
  add_entries(directory, "", read_export_list(directory), contents);
  return contents;
}

bool remove_export(const std::string& directory, const std::vector<OwnFile>& own,
                   const std::vector<std::string>& linked, const std::string& elsewhere) {
  for (const OwnFile& file : own) {
    const std::string path = directory + "/" + file.name;
    const std::optional<struct stat> now = status_of(path);
    if (!now || !S_ISREG(now->st_mode)) continue;
    const OwnFile found = own_file(file.name, *now);
    const bool unchanged = found.device == file.device && found.inode == file.inode &&
                           found.bytes == file.bytes && found.changed_ns == file.changed_ns;
    if (unchanged) ::unlink(path.c_str());
  }
  for (const std::string& name : linked) {
    const std::string path = directory + "/" + name;
    if (same_file(path, elsewhere + "/" + name)) ::unlink(path.c_str());
  }
  ::rmdir((directory + "/" + kTemplatesFolder).c_str());
  return ::rmdir(directory.c_str()) == 0 || errno == ENOENT;
}

}  // namespace longshore
