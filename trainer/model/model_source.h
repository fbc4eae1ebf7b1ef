// ModelSource: the model that a run starts from: its files (BaseFiles), its adapters (AdapterFiles)
// and what is packed of it (BasePacking), its units, and the initial value of every parameter, read
// from the files or generated from the seed. Owned by the run; immutable once the units are chosen;
// reading is safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "config/run_config.h"
#include "hf/adapter_directory.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "model/families/arch_spec.h"
#include "model/models/packed_model.h"
#include "model/parameters/model_spec.h"
#include "model/units/unit.h"
#include "trainer/model/adapter_files.h"
#include "trainer/model/added_tokens.h"
#include "trainer/model/base_files.h"
#include "trainer/model/base_packing.h"

namespace longshore {

// A tensor of a weight file that holds initial values of the run. `file` and `tensor` belong to the
// source.
struct StoredTensor {
  std::string name;  // in the file; tensors of adapter.path begin with "adapter: "
  const SafetensorsFile* file = nullptr;
  const TensorInfo* tensor = nullptr;
  bool frozen = false;
};

class ModelSource {
 public:
  // Opens and checks config.model.path. ConfigError or DataError with every problem found. With
  // kOptional the weights may be missing; then only read_initial() must not be called.
  explicit ModelSource(const RunConfig& config,
                       ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired);

  const BaseFiles& base() const { return base_; }
  // Returns null if no adapters are trained.
  const AdapterFiles* adapter() const { return adapter_ ? &*adapter_ : nullptr; }
  const BasePacking& packing() const { return packing_; }
  // The tokens that the run file adds. The rows that the files lack for them are added_tokens of
  // arch(), and begin as the mean of the others.
  const AddedTokens& tokens() const { return tokens_; }
  // Returns whether the run has tokens that the tokenizer lacks, or for which the model's files
  // have no row.
  bool has_new_tokens() const { return !tokens_.fresh().empty() || arch_.added_tokens > 0; }
  const ModelDirectory& directory() const { return base_.directory(); }
  const ArchSpec& arch() const { return arch_; }
  // Returns the model in other units. The result refers to this object.
  std::shared_ptr<const Model> in_units(const UnitsChoice& units) const;
  // Sets the model with the resolved units; must precede any use of model().
  void choose(std::shared_ptr<const Model> model) { model_ = std::move(model); }
  // The model in the units of fsdp.units; for "auto" in blocks, until `choose` is called.
  const Model& model() const { return *model_; }
  const ModelSpec& spec() const { return model_->spec(); }
  // The specification without splitting or grouping, as in the files.
  const ModelSpec& whole() const { return whole_; }
  // Returns whether adapters are trained over a frozen model.
  bool has_adapter() const { return adapter_.has_value(); }
  // Identifies the model that is trained: its directory, the tokens that the run adds, and the
  // scaling of its adapters.
  std::string fingerprint() const;
  // Returns a text that is equal in two processes of one machine if they read the initial values
  // from the same open files; empty if no value is read from a file.
  std::string weight_files() const;
  // Returns the tensors that the run's initial values are read from, sorted by name; a parameter in
  // a packed format has several: codes, scales and what else belongs to them. None for random
  // weights.
  std::vector<StoredTensor> stored_tensors() const;
  // Returns the files of tokenizer.path by name, as they were when this was made, for the export.
  // None if the run uses the model's own tokenizer; with added tokens those that have them.
  const std::map<std::string, std::string>& tokenizer_files() const { return tokenizer_files_; }
  // Returns the dtype in which the files store each frozen parameter that is not packed, by name.
  std::map<std::string, DType> frozen_dtypes() const;
  // Reads values [begin, begin + out.size()) of a parameter at the start; those of packed ones as
  // the model computes with them. The values of a new magnitude are norms, for which it reads the
  // outputs' weights, in pieces; where a stored matrix has outputs as columns, all of it.
  void read_initial(const std::string& name, int64_t begin, std::span<float> out) const;

 private:
  const ParamSpec& parameter(const std::string& name) const;
  // Returns the directory of adapter.path; null if the run does not start from one.
  const AdapterDirectory* given_adapter() const {
    return adapter_ ? adapter_->directory() : nullptr;
  }
  void read_norms(const std::string& weight, int64_t begin, std::span<float> out) const;

  BaseFiles base_;
  AddedTokens tokens_;
  ArchSpec arch_;
  BasePacking packing_;
  std::optional<AdapterFiles> adapter_;  // empty: no adapters are trained
  ModelSpec whole_;                      // undivided blocks
  std::shared_ptr<const Model> model_;
  std::map<std::string, std::string> tokenizer_files_;
  uint64_t seed_;
};

}  // namespace longshore
