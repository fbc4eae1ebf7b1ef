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

// Compares the index's entries of one file with the file's tensors; both are sorted by name.
void compare_with_index(const std::vector<std::string>& listed, const SafetensorsFile& file,
                        const std::string& index_path, ProblemList& problems) {
  for (const std::string& name : listed) {
    if (file.find(name) == nullptr) {
      problems.add(index_path + ": tensor '" + printable(name) + "' is not in " + file.path());
    }
  }
  for (const TensorInfo& tensor : file.tensors()) {
    if (!std::binary_search(listed.begin(), listed.end(), tensor.name)) {
      problems.add(index_path + ": does not list tensor '" + printable(tensor.name) + "' of " +
                   file.path() + " there");
    }
  }
}

}  // namespace

ModelDirectory ModelDirectory::open(const std::string& path, Weights weights) {
  ModelDirectory directory;
  directory.fd_ = open_hub_directory(path, "model.path names a Hugging Face directory");
  directory.read_configs();
  directory.check_quantisation();
  directory.open_weights(weights);
  directory.build_table();
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

void ModelDirectory::check_quantisation() {
  quantisation_ = read_quantisation(config_, path_of(kConfigName));
  const auto refuse = [this](const Json& config, const std::string& where) {
    for (const char* key : {"quantization_config", "compression_config"}) {
      if (quantised() && where.empty() && std::string_view(key) == "quantization_config") continue;
      const auto found = config.find(key);
      if (found == config.end() || found->is_null()) continue;
      throw ConfigError(path_of(kConfigName) + ": " + where + key +
                        ": quantised weights cannot be trained; take the model's unquantised " +
                        "directory (F32, BF16 or F16)");
    }
  };
  refuse(config_, "");
  const auto text_config = config_.find("text_config");
  if (text_config != config_.end() && text_config->is_object()) {
    refuse(*text_config, "text_config.");
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
    compare_with_index(listed, file, index_path, problems);
    files_.push_back(std::make_unique<WeightFile>(WeightFile{file_name, std::move(file)}));
  }
  problems.throw_if_any();
}

void ModelDirectory::build_table() {
  for (const std::unique_ptr<WeightFile>& file : files_) {
    for (const TensorInfo& tensor : file->file.tensors()) {
      tensors_.push_back({file.get(), &tensor});
      weight_bytes_ += tensor.bytes;
    }
  }
  sort_names();
  ProblemList problems;
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const TensorRef& a = tensors_[by_name_[i - 1]];
    const TensorRef& b = tensors_[by_name_[i]];
    if (a.tensor->name != b.tensor->name) continue;
    problems.add(b.file->file.path() + ": tensor '" + printable(b.tensor->name) + "' is also in " +
                 a.file->name);
  }
  problems.throw_if_any();
  if (index_total_size_ && *index_total_size_ != weight_bytes_) {
    warnings_.push_back(path_of(kWeightIndexName) + ": metadata.total_size is " +
                        std::to_string(*index_total_size_) + ", the tensors have " +
                        std::to_string(weight_bytes_) + " bytes");
  }
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
    PairedTensor paired = quantisation_ == Quantisation::kFp8
                              ? pair_fp8({&ref.file->file, ref.tensor}, find_by_name)
                              : pair_mxfp4({&ref.file->file, ref.tensor}, find_by_name);
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
  if (packed_.empty() && !tensors_.empty()) {
    throw ConfigError(path_of(kConfigName) + ": quantization_config names " +
                      std::string(name_of(quantisation_)) +
                      ", but no weights are in it; remove quantization_config");
  }
  tensors_ = std::move(tensors);
  sort_names();
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
    // An export lacks the weights of an adapter beside the model, so it must not name one.
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
