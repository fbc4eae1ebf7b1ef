// BaseFiles: the Hugging Face directory of the model that a run starts from, and the reader of its
// weights. ModelSource owns it; immutable once the weights are open. Reading is safe from any
// thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "model/families/arch_spec.h"
#include "shard/unit_spec.h"

namespace longshore {

class BaseFiles {
 public:
  // Opens config.model.path. With kOptional the weights may be missing.
  BaseFiles(const RunConfig& config, ModelDirectory::Weights weights);
  BaseFiles(const BaseFiles&) = delete;
  BaseFiles& operator=(const BaseFiles&) = delete;

  // Returns the model in undivided blocks, as the files hold it, and sets how they spell experts in
  // `arch`. ConfigError or DataError with every tensor that does not fit.
  ModelSpec whole_spec(ArchSpec& arch);
  // Opens the weights of these parameters unless they are random or missing.
  void open_weights(const ArchSpec& arch, const ModelSpec& whole);

  const ModelDirectory& directory() const { return directory_; }
  // Returns whether model.init requests random weights.
  bool random() const { return random_; }
  // Returns false only for a plan of a directory without weights.
  bool has_weights() const { return random_ || weights_.has_value(); }
  // Returns null if the weights are random or missing.
  const WeightLoader* weights() const { return weights_ ? &*weights_ : nullptr; }
  // Maps tensors that duplicate a parameter's values to that parameter.
  const std::map<std::string, std::string>& copies() const { return copies_; }
  // Returns a text that is equal in two processes of one machine if they read from the same open
  // files; empty without weights.
  std::string identity() const;
  // Returns one line about random weights, which also says whether the directory has trained ones.
  std::string random_weights_text() const;

 private:
  bool random_;
  ModelDirectory directory_;
  std::map<std::string, std::string> copies_;
  std::optional<WeightLoader> weights_;  // over directory_
};

}  // namespace longshore
