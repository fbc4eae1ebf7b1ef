#include "hf/model_directory.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/texts.h"
#include "hf/adapter_directory.h"
#include "hf/directory_entry.h"
#include "hf/hub_cache.h"
#include "hf/packed_tensor.h"
#include "hf/problem_list.h"
#include "hf/weight_index.h"

namespace longshore {
namespace {

constexpr JsonLimits kConfigLimits = {
    .max_bytes = 4 * kMiB, .max_depth = 32, .max_values = 200'000};
constexpr Bytes kCompareChunkBytes = kMiB;
constexpr const char* kConfigName = "config.json";
constexpr const char* kGenerationName = "generation_config.json";
constexpr const char* kTemplatesName = "additional_chat_templates";

// Companions with names of our own, which users may link to other locations.
bool is_known_companion(std::string_view name) {
  constexpr std::array<std::string_view, 12> kNames = {
      "config.json",     "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
      "tokenizer.model", "special_tokens_map.json", "vocab.json",     "added_tokens.json",
      "merges.txt",      "chat_template.jinja",     "README.md",      "LICENSE"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Links links_of(std::string_view companion) {
  return is_known_companion(companion) ? Links::kAny : Links::kCache;
}

Json parse_object(const std::string& text, const std::string& origin) {
  Json json = parse_json(python_numbers(text), kConfigLimits, origin);
  if (!json.is_object()) throw DataError(origin + ": not a JSON object");
  return json;
}

// Names the model that the adapter belongs to.
[[noreturn]] void refuse_adapter(const UniqueFd& directory) {
  const std::string name(kAdapterConfigName);
  const std::string text =
      read_text(open_entry(directory, name, Links::kAny), kConfigLimits.max_bytes);
  const Json config = parse_object(text, directory.path() + "/" + name);
  const auto base = config.find("base_model_name_or_path");
  const bool named = base != config.end() && base->is_string();
  throw ConfigError(directory.path() + ": an adapter, without the model that it belongs to" +
                    (named ? " (" + printable(base->get<std::string>()) + ")" : "") +
                    "; model.path names the model, adapter.path the adapter");
}

// Returns "tensor 'a'" or "3 tensors, 'a' first,".
std::string counted(const std::vector<std::string>& names) {
  const std::string first = "'" + printable(names.front()) + "'";
  if (names.size() == 1) return "tensor " + first;
  return std::to_string(names.size()) + " tensors, " + first + " first,";
}

PairedTensor pair_for(Quantisation quantisation, PackedTensor::Part part, const FindPart& find) {
  switch (quantisation) {
    case Quantisation::kFp8:
      return pair_fp8(part, find);
    case Quantisation::kMxfp4:
      return pair_mxfp4(part, find);
    case Quantisation::kNf4:
    case Quantisation::kNf4F32:
      return pair_nf4(part, find);
    case Quantisation::kNone:
      break;
  }
  return {};
}

}  // namespace

ModelDirectory ModelDirectory::open(const std::string& path, Weights weights,
                                    std::span<const std::string> mxfp4_families) {
  ModelDirectory directory;
  directory.fd_ = open_hub_directory(path, "model.path names a Hugging Face directory");
  directory.read_configs();
  directory.open_weights(weights);
  directory.build_table(mxfp4_families);
  directory.list_companions();
  return directory;
}

void ModelDirectory::read_configs() {
  if (!entry_exists(fd_, kConfigName)) {
    if (entry_exists(fd_, std::string(kAdapterConfigName))) refuse_adapter(fd_);
    std::string instead;
    if (is_directory_entry(fd_, "snapshots")) {
      instead = "; name one of the directories in its snapshots/";
    } else if (entry_exists(fd_, "hf/" + std::string(kConfigName))) {
      instead = "; the run's model is " + path_of("hf");
    } else if (entry_exists(fd_, "hf/" + std::string(kAdapterConfigName))) {
      instead = "; the run's adapter is " + path_of("hf") + " (adapter.path continues it)";
    }
    throw ConfigError(path() + ": no config.json, so it is no Hugging Face model directory" +
                      instead);
  }
  config_text_ = read_text(open_entry(fd_, kConfigName, Links::kAny), kConfigLimits.max_bytes);
  config_ = parse_object(config_text_, path_of(kConfigName));
  if (!entry_exists(fd_, kGenerationName)) return;
  const std::string text =
      read_text(open_entry(fd_, kGenerationName, Links::kAny), kConfigLimits.max_bytes);
  generation_config_ = parse_object(text, path_of(kGenerationName));
}

// The files decide: plain weights are trained whatever config.json says that they once were.
void ModelDirectory::resolve_quantisation(std::span<const std::string> mxfp4_families) {
  const std::vector<std::string> keys = quantisation_keys(config_);
  if (keys.empty()) return;
  const bool plain = std::ranges::none_of(tensors_, [](const TensorRef& ref) {
    return is_packed_part(ref.tensor->name, ref.tensor->dtype, ref.tensor->shape.size());
  });
  if (plain && !tensors_.empty()) {
    config_text_ = without_quantisation_keys(config_text_);
    config_ = parse_object(config_text_, path_of(kConfigName));
    notes_.push_back(path_of(kConfigName) + ": " + joined(keys, ", ") +
                     " says that the weights are quantised, but all of them are plain (F32, BF16 "
                     "or F16): it is ignored, and an export leaves it out");
    return;
  }
  quantisation_ = read_quantisation(config_, path_of(kConfigName), mxfp4_families);
  for (const std::string& key : keys) {
    if (quantised() && key == "quantization_config") continue;
    throw ConfigError(path_of(kConfigName) + ": " + key +
                      ": quantised weights cannot be trained; take the model's unquantised " +
                      "directory (F32, BF16 or F16)");
  }
}

void ModelDirectory::open_weights(Weights weights) {
  const std::string single(kSingleWeightsName);
  const bool has_single = entry_exists(fd_, single);
  if (entry_exists(fd_, std::string(kWeightIndexName))) {
    open_indexed_files();
    const auto is_single = [&](const auto& file) { return file->name == single; };
    if (has_single && std::none_of(files_.begin(), files_.end(), is_single)) {
      throw DataError(path_of(single) + ": " + std::string(kWeightIndexName) +
                      " lists other files; remove the weights that are not meant");
    }
  } else if (has_single) {
    SafetensorsFile file(open_entry(fd_, single, Links::kAny));
    files_.push_back(std::make_unique<WeightFile>(WeightFile{single, std::move(file)}));
  } else if (weights == Weights::kRequired) {
    throw ConfigError(no_weights_reason(path(), list_entries(fd_)));
  }
}

void ModelDirectory::open_indexed_files() {
  const std::string name(kWeightIndexName);
  const std::string index_path = path_of(name);
  index_text_ = read_text(open_entry(fd_, name, Links::kAny), kMaxIndexBytes);
  const WeightIndex index = parse_weight_index(index_text_, index_path);
  index_total_size_ = index.total_size;

  ProblemList problems;
  for (const auto& [file_name, listed] : index.tensors_of_file) {
    if (!entry_exists(fd_, file_name)) {
      problems.add(path_of(file_name) + ": missing, but " + name + " lists tensor '" +
                   printable(listed.front()) + "' in it; fetch it");
      continue;
    }
    SafetensorsFile file(open_entry(fd_, file_name, Links::kCache));
    files_.push_back(std::make_unique<WeightFile>(WeightFile{file_name, std::move(file)}));
  }
  problems.throw_if_any();
  check_index(index);
}

// Throws for tensors that are not where the index says, with one line for each pair of files, since
// programs differ in which copy they take. A tensor that no file has is only noted, because tensors
// that the model needs are checked later.
void ModelDirectory::check_index(const WeightIndex& index) {
  std::map<std::string_view, std::string_view> file_of;  // as the index has it
  for (const auto& [file_name, listed] : index.tensors_of_file) {
    for (const std::string& name : listed) file_of.emplace(name, file_name);
  }
  // Tensors by the file that holds them and the file that the index names; "" if it names none.
  std::map<std::pair<std::string_view, std::string_view>, std::vector<std::string>> misplaced;
  for (const std::unique_ptr<WeightFile>& file : files_) {
    for (const TensorInfo& tensor : file->file.tensors()) {
      const auto listed = file_of.find(tensor.name);
      const std::string_view named = listed == file_of.end() ? "" : listed->second;
      if (named != file->name) misplaced[{file->name, named}].push_back(tensor.name);
    }
  }
  ProblemList problems;
  const std::string index_path = path_of(kWeightIndexName);
  for (const auto& [files, names] : misplaced) {
    const auto& [holder, named] = files;
    const std::string what = path_of(holder) + " holds " + counted(names);
    if (named.empty()) {
      problems.add(what + " that " + index_path + " does not list; fetch both files again");
      continue;
    }
    const bool copies = find_in_file(named, names.front()) != nullptr;
    problems.add(what + " that " + index_path + " places in " + std::string(named) +
                 (copies
                      ? ", where they are too: transformers takes the copy of the file that comes "
                        "last in the alphabet, vLLM that of the index; fetch the files again, or "
                        "write " +
                            std::string(holder) + " without them"
                      : "; fetch the files again"));
  }
  problems.throw_if_any();
  std::map<std::string, std::string> absent;
  for (const auto& [name, file_name] : file_of) {
    if (find_in_file(file_name, name) == nullptr) absent.emplace(name, file_name);
  }
  if (!absent.empty()) leave_out_absent(absent);
}

const TensorInfo* ModelDirectory::find_in_file(std::string_view file_name,
                                               std::string_view name) const {
  const auto at = std::ranges::lower_bound(
      files_, file_name, {}, [](const auto& file) { return std::string_view(file->name); });
  return (*at)->file.find(name);
}

// `absent` has the file that the index names by tensor.
void ModelDirectory::leave_out_absent(const std::map<std::string, std::string>& absent) {
  std::vector<std::string> names;
  for (const auto& [name, file] : absent) names.push_back(name);
  const std::string& file = absent.begin()->second;
  absent_note_ = path_of(kWeightIndexName) + ": lists " + counted(names) + " of " + file +
                 " that no file has; an export's index leaves them out. If the model needs them, "
                 "fetch " +
                 file + " again";
  notes_.push_back(absent_note_);
  index_text_ = without_tensors(index_text_, names);
}

void ModelDirectory::build_table(std::span<const std::string> mxfp4_families) {
  for (const std::unique_ptr<WeightFile>& file : files_) {
    for (const TensorInfo& tensor : file->file.tensors()) {
      tensors_.push_back({file.get(), &tensor});
      weight_bytes_ += tensor.bytes;
    }
  }
  sort_names();
  if (absent_note_.empty() && index_total_size_ && *index_total_size_ != weight_bytes_) {
    warnings_.push_back(path_of(kWeightIndexName) + ": metadata.total_size is " +
                        std::to_string(*index_total_size_) + ", the tensors have " +
                        std::to_string(weight_bytes_) + " bytes");
  }
  resolve_quantisation(mxfp4_families);
  pair_packed();
}

void ModelDirectory::sort_names() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return tensors_[a].tensor->name < tensors_[b].tensor->name;
  });
}

// Replaces each packed tensor and its scales by the parameter.
void ModelDirectory::pair_packed() {
  if (!quantised()) return;
  ProblemList problems;
  std::vector<TensorRef> tensors;
  for (const TensorRef& ref : tensors_) {
    const auto find_by_name = [this](const std::string& name) {
      const TensorRef found = find(name);
      return found ? PackedTensor::Part{&found.file->file, found.tensor} : PackedTensor::Part();
    };
    PairedTensor paired = pair_for(quantisation_, {&ref.file->file, ref.tensor}, find_by_name);
    if (!paired.problem.empty()) {
      problems.add(ref.file->file.path() + ": tensor '" + printable(ref.tensor->name) +
                   "': " + paired.problem);
    } else if (paired.packed) {
      packed_.push_back(std::move(paired.packed));
      tensors.push_back({ref.file, &packed_.back()->values(), packed_.back().get()});
    } else if (!paired.scales) {
      tensors.push_back(ref);
    }
  }
  problems.throw_if_any();
  check_packed();
  tensors_ = std::move(tensors);
  sort_names();
}

// A run keeps packed matrices in one format.
void ModelDirectory::check_packed() const {
  if (packed_.empty() && !tensors_.empty()) {
    throw ConfigError(path_of(kConfigName) + ": quantization_config names " +
                      std::string(name_of(quantisation_)) +
                      ", but the weights are packed otherwise; take the model's unquantised "
                      "directory (F32, BF16 or F16)");
  }
  const auto other = std::ranges::find_if(packed_, [this](const auto& tensor) {
    return tensor->format() != packed_.front()->format();
  });
  if (other == packed_.end()) return;
  throw DataError(path() + ": tensor '" + printable((*other)->values().name) + "' is packed as " +
                  std::string(name_of((*other)->format())) + ", tensor '" +
                  printable(packed_.front()->values().name) + "' as " +
                  std::string(name_of(packed_.front()->format())) +
                  "; a model is read whose matrices all have one format");
}

void ModelDirectory::sum_reads() {
  for (const std::unique_ptr<WeightFile>& file : files_) file->file.sum_reads();
}

ModelDirectory::TensorRef ModelDirectory::find_stored(std::string_view name) const {
  for (const std::unique_ptr<WeightFile>& file : files_) {
    if (const TensorInfo* const tensor = file->file.find(name)) return {file.get(), tensor};
  }
  return {};
}

ModelDirectory::TensorRef ModelDirectory::find(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t index, std::string_view key) { return tensors_[index].tensor->name < key; });
  if (at == by_name_.end() || tensors_[*at].tensor->name != name) return {};
  return tensors_[*at];
}

bool ModelDirectory::same_bytes(const TensorRef& a, const TensorRef& b) const {
  LONGSHORE_CHECK(a && b) << "no tensors";
  if (a.packed != nullptr || b.packed != nullptr) return false;
  if (a.tensor->dtype != b.tensor->dtype || a.tensor->shape != b.tensor->shape) return false;
  const Bytes total = a.tensor->bytes;
  std::vector<std::byte> chunk_a(static_cast<size_t>(std::min(kCompareChunkBytes, total)));
  std::vector<std::byte> chunk_b(chunk_a.size());
  for (Bytes begin = 0; begin < total; begin += kCompareChunkBytes) {
    const auto bytes = static_cast<size_t>(std::min(kCompareChunkBytes, total - begin));
    const std::span<std::byte> part_a = std::span(chunk_a).first(bytes);
    const std::span<std::byte> part_b = std::span(chunk_b).first(bytes);
    a.file->file.read(*a.tensor, begin, part_a);
    b.file->file.read(*b.tensor, begin, part_b);
    if (!std::equal(part_a.begin(), part_a.end(), part_b.begin())) return false;
  }
  return true;
}

void ModelDirectory::list_companions() {
  const auto add = [this](const UniqueFd& directory, const std::string& prefix,
                          const std::string& name) {
    if (!is_plain_file_name(name) || is_weight_file_name(name)) return;
    // An export does not contain the weights of an adapter in the model's directory, so it must not
    // name one.
    if (name == kAdapterConfigName) return;
    if (is_directory_entry(directory, name)) return;
    try {
      keep_companion(prefix + name, open_entry(directory, name, links_of(prefix + name)));
      companion_files_.push_back(prefix + name);
    } catch (const Error& error) {
      warnings_.push_back(std::string(error.what()) + " (an export leaves it out)");
    }
  };
  for (const std::string& name : list_entries(fd_)) add(fd_, "", name);
  if (is_directory_entry(fd_, kTemplatesName)) {
    const UniqueFd templates = open_subdirectory(fd_, kTemplatesName);
    for (const std::string& name : list_entries(templates)) {
      add(templates, std::string(kTemplatesName) + "/", name);
    }
  }
  std::sort(companion_files_.begin(), companion_files_.end());
}

void ModelDirectory::keep_companion(const std::string& name, const UniqueFd& fd) {
  const Bytes bytes = file_bytes(fd);
  if (name == kConfigName) {
    companion_texts_[name] = config_text_;
  } else if (bytes <= kMaxKeptCompanion && kept_bytes_ + bytes <= kMaxKeptCompanions) {
    companion_texts_[name] = read_text(fd, kMaxKeptCompanion);
    kept_bytes_ += bytes;
  } else {
    companion_states_[name] = identity_of(fd);
  }
}

const std::string* ModelDirectory::companion_text(const std::string& name) const {
  const auto found = companion_texts_.find(name);
  return found == companion_texts_.end() ? nullptr : &found->second;
}

UniqueFd ModelDirectory::open_companion(const std::string& name) const {
  const bool listed = std::binary_search(companion_files_.begin(), companion_files_.end(), name);
  LONGSHORE_CHECK(listed) << name;
  const std::string advice = "; put it back, or start again with the model as it is now";
  UniqueFd fd;
  try {
    fd = open_named(name);
  } catch (const IoError& error) {
    throw DataError(path_of(name) + ": cannot be read any more (" + error.what() + ")" + advice);
  }
  const auto state = companion_states_.find(name);
  if (state != companion_states_.end() && state->second != identity_of(fd)) {
    throw DataError(path_of(name) + ": changed since the model was read" + advice);
  }
  return fd;
}

UniqueFd ModelDirectory::open_named(const std::string& name) const {
  const size_t slash = name.find('/');
  if (slash != std::string::npos) {
    const UniqueFd folder = open_subdirectory(fd_, name.substr(0, slash));
    return open_entry(folder, name.substr(slash + 1), links_of(name));
  }
  return open_entry(fd_, name, links_of(name));
}

std::string ModelDirectory::fingerprint() const {
  // Each text is preceded by its length, so that different directories hash different bytes.
  Hasher hasher;
  const auto add = [&hasher](std::string_view text) {
    hasher.update(std::to_string(text.size()) + ":").update(text);
  };
  add(config_text_);
  for (const std::unique_ptr<WeightFile>& file : files_) {
    add(file->name);
    add(std::to_string(file->file.file_bytes()));
    add(hash_text(file->file.header_hash()));
  }
  return hash_text(hasher.digest());
}

}  // namespace longshore
