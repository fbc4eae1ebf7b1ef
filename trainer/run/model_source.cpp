#include "trainer/run/model_source.h"

#include <utility>

#include "base/errors.h"
#include "model/families.h"
#include "model/model_spec.h"
#include "model/random_init.h"

namespace longshore {
namespace {

// The family's rules, as the loader wants them: one for each tensor that a rule names. Copies hold
// what another tensor holds.
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

// A tied model whose files hold the embedding's bytes once more as its head, as some programs write
// it: the name of that head, or "".
std::string stored_copy_of_head(const ArchSpec& arch, const ModelSpec& spec,
                                const ModelDirectory& directory) {
  if (!arch.tied_by_config || !spec.units.back().borrowed.empty()) return {};
  const std::string& head = spec.units.back().parameters.back().name;
  const auto stored = directory.find(head);
  const auto embedding = directory.find(spec.units.front().parameters.front().name);
  return stored && embedding && directory.same_bytes(stored, embedding) ? head : std::string();
}

// A tied model whose files hold a head of its own: transformers would ignore that head, so training
// it, or not, must be the user's decision.
void check_tied_head(const ArchSpec& arch, const ModelSpec& spec, const ModelDirectory& directory) {
  if (!arch.tied_by_config || !spec.units.back().borrowed.empty()) return;
  if (directory.tensors().empty()) return;
  throw ConfigError(arch.origin +
                    ": says that the head is tied to the embedding, but the weights "
                    "hold a head of their own; set tie_word_embeddings to false to train it, or "
                    "remove it from the weights");
}

UnitPolicy unit_policy(const UnitsChoice& units) {
  UnitPolicy policy{.kind = UnitPolicy::Kind::kBlock,
                    .classes = units.classes,
                    .min_parameters = units.min_parameters,
                    .groups = units.groups};
  switch (units.kind) {
    case UnitsChoice::Kind::kBlock:
      break;
    case UnitsChoice::Kind::kClasses:
      policy.kind = UnitPolicy::Kind::kClasses;
      break;
    case UnitsChoice::Kind::kMinParameters:
      policy.kind = UnitPolicy::Kind::kMinParameters;
      break;
    case UnitsChoice::Kind::kGroups:
      policy.kind = UnitPolicy::Kind::kGroups;
      break;
  }
  return policy;
}

}  // namespace

ModelSource::ModelSource(const RunConfig& config) : seed_(static_cast<uint64_t>(config.run.seed)) {
  const bool random = config.model.init == ModelSection::Init::kRandom;
  directory_ = std::make_unique<ModelDirectory>(
      ModelDirectory::open(config.model.path, random ? ModelDirectory::Weights::kOptional
                                                     : ModelDirectory::Weights::kRequired));
  ArchSpec arch = read_arch_spec(directory_->config(), directory_->path_of("config.json"));
  std::vector<FileTensor> files = file_tensors(*directory_);
  ModelSpec spec = make_model_spec(arch, files);
  if (const std::string head = stored_copy_of_head(arch, spec, *directory_); !head.empty()) {
    copies_[head] = spec.units.front().parameters.front().name;
    std::erase_if(files, [&head](const FileTensor& file) { return file.name == head; });
    spec = make_model_spec(arch, files);
  }
  check_tied_head(arch, spec, *directory_);
  freeze_parameters(spec, config.train.freeze, "train.freeze");
  validate_model_spec(spec);
  if (spec.trainable_elements() == 0) {
    throw ConfigError("train.freeze: every parameter is frozen, so there is nothing to train");
  }
  if (!random) loader_.emplace(*directory_, spec, skip_rules(arch, *directory_, copies_));
  decoder_ = std::make_unique<DecoderModel>(std::move(arch), std::move(spec));
  model_ = std::make_unique<GroupedModel>(
      decoder_.get(), group_units(decoder_->spec(), unit_classes(decoder_->arch()),
                                  unit_policy(config.fsdp.units)));
}

void ModelSource::read_initial(const std::string& name, int64_t begin, std::span<float> out) const {
  if (loader_.has_value()) {
    loader_->read_parameter(name, begin, out);
  } else {
    fill_random(name, parameter(name).init, seed_, begin, out);
  }
}

const ParamSpec& ModelSource::parameter(const std::string& name) const {
  for (const UnitSpec& unit : spec().units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.name == name) return parameter;
    }
  }
  throw CheckFailure("no parameter " + name);
}

}  // namespace longshore
