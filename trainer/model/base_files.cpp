#include "trainer/model/base_files.h"

#include <utility>
#include <vector>

#include "base/errors.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

// Returns the loader's rules for tensors to skip: the family's rules and the copies of other
// tensors.
std::vector<SkipRule> skip_rules(const ArchSpec& arch, const ModelDirectory& directory,
                                 const std::map<std::string, std::string>& copies) {
  std::vector<SkipRule> rules;
  for (const auto& [name, parameter] : copies) {
    rules.push_back({.prefix = name, .suffix = "", .reason = "a copy of " + parameter});
  }
  for (const ModelDirectory::TensorRef& tensor : directory.tensors()) {
    if (!is_skipped_tensor(arch, tensor.tensor->name)) continue;
    rules.push_back({.prefix = tensor.tensor->name, .suffix = "", .reason = "a buffer"});
  }
  return rules;
}

std::vector<FileTensor> file_tensors(const ModelDirectory& directory) {
  std::vector<FileTensor> tensors;
  for (const ModelDirectory::TensorRef& tensor : directory.tensors()) {
    tensors.push_back({tensor.tensor->name, tensor.tensor->shape});
  }
  return tensors;
}

// Makes the model's spec. A tensor that it needs may be one that the index lists and no file has.
ModelSpec spec_for(const ArchSpec& arch, const std::vector<FileTensor>& files,
                   const ModelDirectory& directory) {
  try {
    return make_model_spec(arch, files);
  } catch (const DataError& error) {
    if (directory.absent_note().empty()) throw;
    throw DataError(std::string(error.what()) + "\n" + directory.absent_note());
  }
}

// For a tied model whose files also store the embedding's bytes as a head, as some programs do,
// returns that head's name; otherwise "".
std::string stored_copy_of_head(const ArchSpec& arch, const ModelSpec& spec,
                                const ModelDirectory& directory) {
  if (!arch.tied_by_config || !spec.units.back().tied.empty()) return {};
  const std::string& head = spec.units.back().parameters.back().name;
  const auto stored = directory.find(head);
  const auto embedding = directory.find(spec.units.front().parameters.front().name);
  return stored && embedding && directory.same_bytes(stored, embedding) ? head : std::string();
}

// ConfigError if a tied model's files contain a different head: transformers would ignore it, so
// the user must decide whether to train it.
void check_tied_head(const ArchSpec& arch, const ModelSpec& spec, const ModelDirectory& directory) {
  if (!arch.tied_by_config || !spec.units.back().tied.empty()) return;
  if (directory.tensors().empty()) return;
  throw ConfigError(arch.origin +
                    ": says that the head is tied to the embedding, but the weights "
                    "hold a head of their own; set tie_word_embeddings to false to train it, or "
                    "remove it from the weights");
}

}  // namespace

BaseFiles::BaseFiles(const RunConfig& config, ModelDirectory::Weights weights)
    : random_(config.model.init == ModelSection::Init::kRandom),
      directory_(ModelDirectory::open(config.model.path,
                                      random_ ? ModelDirectory::Weights::kOptional : weights,
                                      mxfp4_families())) {}

ModelSpec BaseFiles::whole_spec(ArchSpec& arch) {
  std::vector<FileTensor> files = file_tensors(directory_);
  arch = spelled_as(std::move(arch), files);
  ModelSpec whole = spec_for(arch, files, directory_);
  if (const std::string head = stored_copy_of_head(arch, whole, directory_); !head.empty()) {
    copies_[head] = whole.units.front().parameters.front().name;
    std::erase_if(files, [&head](const FileTensor& file) { return file.name == head; });
    whole = spec_for(arch, files, directory_);
  }
  check_tied_head(arch, whole, directory_);
  return whole;
}

void BaseFiles::open_weights(const ArchSpec& arch, const ModelSpec& whole) {
  if (random_ || directory_.files().empty()) return;
  weights_.emplace(directory_, whole, skip_rules(arch, directory_, copies_));
  directory_.sum_reads();
}

std::string BaseFiles::identity() const {
  std::string text;
  if (!weights_) return text;
  for (const auto& file : directory_.files()) text += file->file.identity() + "\n";
  return text;
}

std::string BaseFiles::random_weights_text() const {
  const std::string start =
      "model.init = \"random\": the weights are random ones made with run.seed";
  if (directory_.files().empty()) return start + "; " + directory_.path() + " has no weights";
  return start + ", not those in " + directory_.path() +
         "; to start from these, set model.init = \"pretrained\"";
}

}  // namespace longshore
