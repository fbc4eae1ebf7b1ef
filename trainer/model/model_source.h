// ModelSource: the model that a run starts from: its Hugging Face directory, the units made of it,
// and the first value of every parameter, read from the files or made from the seed.
// Owned by the run; immutable once the units are chosen; reading is safe from any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "config/run_config.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "model/arch_spec.h"
#include "model/unit.h"

namespace longshore {

class ModelSource {
 public:
  // Opens and checks config.model.path. ConfigError or DataError with every problem found. With
  // kOptional a directory without weights will do, and only read_initial() may not be called then.
  explicit ModelSource(const RunConfig& config,
                       ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired);

  const ModelDirectory& directory() const { return *directory_; }
  const ArchSpec& arch() const { return arch_; }
  // The model in other units; it lives as long as whoever holds it and this object.
  std::shared_ptr<const Model> in_units(const UnitsChoice& units) const;
  // Before anything is made of model().
  void choose(std::shared_ptr<const Model> model) { model_ = std::move(model); }
  // The model in the units of fsdp.units; with "auto" its blocks, until others are chosen.
  const Model& model() const { return *model_; }
  const ModelSpec& spec() const { return model_->spec(); }
  // Tensors of the files that hold a parameter's values once more, and that parameter.
  const std::map<std::string, std::string>& copies() const { return copies_; }
  // With nothing cut or merged: what files have.
  const ModelSpec& whole() const { return whole_; }
  // Whether the run file asks for random weights (model.init).
  bool random() const { return random_; }
  // Whether there are values to begin with: false for a plan of a directory without weights.
  bool has_weights() const { return random_ || loader_.has_value(); }
  // One line for whoever starts with random weights, and whether the directory has others.
  std::string random_weights_text() const;
  // Elements [begin, begin + out.size()) of a parameter before the first step.
  void read_initial(const std::string& name, int64_t begin, std::span<float> out) const;

 private:
  const ParamSpec& parameter(const std::string& name) const;

  std::unique_ptr<ModelDirectory> directory_;
  ArchSpec arch_;
  ModelSpec whole_;  // with whole blocks
  std::map<std::string, std::string> copies_;
  std::shared_ptr<const Model> model_;
  std::optional<WeightLoader> loader_;  // empty: random weights, or none
  bool random_;
  uint64_t seed_;
};

}  // namespace longshore
