// ModelSource: the model that a run starts from: its Hugging Face directory, the units made of it,
// and the first value of every parameter, read from the files or made from the seed.
// Owned by the run; immutable; reading is safe from any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "config/run_config.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "model/decoder_model.h"
#include "model/grouped_model.h"

namespace longshore {

class ModelSource {
 public:
  // Opens and checks config.model.path. ConfigError or DataError with every problem found.
  explicit ModelSource(const RunConfig& config);

  const ModelDirectory& directory() const { return *directory_; }
  const ArchSpec& arch() const { return decoder_->arch(); }
  // The model in the units of fsdp.units.
  const Model& model() const { return *model_; }
  const ModelSpec& spec() const { return model_->spec(); }
  // Tensors of the files that hold a parameter's values once more, and that parameter.
  const std::map<std::string, std::string>& copies() const { return copies_; }
  bool random() const { return !loader_.has_value(); }
  // Elements [begin, begin + out.size()) of a parameter before the first step.
  void read_initial(const std::string& name, int64_t begin, std::span<float> out) const;

 private:
  const ParamSpec& parameter(const std::string& name) const;

  std::unique_ptr<ModelDirectory> directory_;
  std::unique_ptr<DecoderModel> decoder_;
  std::unique_ptr<GroupedModel> model_;
  std::map<std::string, std::string> copies_;
  std::optional<WeightLoader> loader_;  // empty: random weights
  uint64_t seed_;
};

}  // namespace longshore
