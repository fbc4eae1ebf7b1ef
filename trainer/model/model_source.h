// ModelSource: the model that a run starts from: its Hugging Face directory, its units, and the
// initial value of every parameter, read from the files or generated from the seed. Owned by the
// run; immutable once the units are chosen; reading is safe from any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "trainer/model/model_files.h"
#include "trainer/model/packed_files.h"

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

  const ModelDirectory& directory() const { return *directory_; }
  const ArchSpec& arch() const { return arch_; }
  // Returns the model in other units. The result refers to this object.
  std::shared_ptr<const Model> in_units(const UnitsChoice& units) const;
  // Sets the model with the resolved units; must precede any use of model().
  void choose(std::shared_ptr<const Model> model) { model_ = std::move(model); }
  // The model in the units of fsdp.units; for "auto" in blocks, until `choose` is called.
  const Model& model() const { return *model_; }
  const ModelSpec& spec() const { return model_->spec(); }
  // Maps tensors that duplicate a parameter's values to that parameter.
  const std::map<std::string, std::string>& copies() const { return copies_; }
  // The specification without splitting or grouping, as in the files.
  const ModelSpec& whole() const { return whole_; }
  // Returns whether model.init requests random weights.
  bool random() const { return random_; }
  // Returns false only for a plan of a directory without weights.
  bool has_weights() const { return random_ || loader_.has_value(); }
  // Returns whether adapters are trained over a frozen model.
  bool has_adapter() const { return arch_.adapter.rank > 0; }
  // Returns the settings of the adapters as adapter_config.json has them: those of the adapter that
  // the run starts from, or those of new ones.
  const AdapterSettings& adapter_settings() const { return adapter_settings_; }
  // Returns a sentence about an adapter beside the model's weights, which the run does not use, or
  // about keys of the run file that adapter.path replaces; empty if there is neither.
  std::string adapter_note() const;
  // Returns the name that transformers gives to a parameter of the files: gpt2's files may lack its
  // "transformer." in front, and those of wrappers have older names.
  std::string published_name(const std::string& parameter) const;
  // Identifies the model that is trained: its directory and the scaling of its adapters.
  std::string fingerprint() const;
  // Returns a text that is equal in two processes of one machine if they read the initial values
  // from the same open files; empty if no value is read from a file.
  std::string weight_files() const;
  // Returns the tensors that the run's initial values are read from, sorted by name; a parameter in
  // a packed format has two, codes and scales. None for random weights.
  std::vector<StoredTensor> stored_tensors() const;
  // Returns the files of tokenizer.path by name, as they were when this was made, for the export;
  // none if the run uses the model's own tokenizer.
  const std::map<std::string, std::string>& tokenizer_files() const { return tokenizer_files_; }
  // Returns one line about random weights, which also says whether the directory has trained ones.
  std::string random_weights_text() const;
  // Returns whether frozen matrices are packed (adapter.base, or the model's own files).
  bool packs() const { return packing_.has_value(); }
  // Returns whether this parameter is packed.
  bool packs(const std::string& name) const { return packed_ && packed_->has(name); }
  // Reads frozen parameters while a run trains; null unless they are packed or
  // offload.parameters = "files".
  const FrozenSource* frozen() const {
    if (packed_) return &*packed_;
    return files_ ? &*files_ : nullptr;
  }
  // Returns the dtype in which the files store each frozen parameter that is not packed, by name.
  std::map<std::string, DType> frozen_dtypes() const;
  // Reads values [begin, begin + out.size()) of a parameter at the start; those of packed ones as
  // the model computes with them. The values of a new magnitude are norms, for which it reads the
  // outputs' weights, in pieces; where a stored matrix has outputs as columns, all of it.
  void read_initial(const std::string& name, int64_t begin, std::span<float> out) const;
  // Reads bytes of a packed parameter as the tiers hold it.
  void read_packed(const std::string& name, Bytes begin, std::span<std::byte> out) const;

 private:
  const ParamSpec& parameter(const std::string& name) const;
  void choose_packing(const RunConfig& config);
  void read_adapter(const RunConfig& config);
  void name_as_peft();
  void check_adapter_tensors();
  DataError other_shape(const std::string& name, const std::vector<int64_t>& needed) const;
  void check_tied_copy() const;
  void find_older_tensors();
  void check_older_tensors(const ParamSpec& parameter, std::set<std::string>& unused) const;
  // Reads a whole parameter in the order of this program.
  std::vector<float> read_adapter_tensor(const ParamSpec& parameter) const;
  void read_norms(const std::string& weight, int64_t begin, std::span<float> out) const;

  std::unique_ptr<ModelDirectory> directory_;
  std::string adapter_path_;                 // adapter.path
  std::optional<AdapterDirectory> adapter_;  // of adapter.path; empty: new adapters
  AdapterSettings adapter_settings_;
  std::string replaced_note_;  // names the keys that adapter.path replaces
  // A tensor of an adapter that was made with transformers 4: one of a single expert, or of a
  // router with its older name.
  struct OlderTensor {
    std::string name;
    AdaptedPart part;
  };
  std::map<std::string, std::vector<OlderTensor>> older_;  // by the parameter that they are part of
  ArchSpec arch_;
  ModelSpec whole_;  // undivided blocks
  std::map<std::string, std::string> copies_;
  std::shared_ptr<const Model> model_;
  std::map<std::string, std::string> tokenizer_files_;
  std::optional<WeightLoader> loader_;  // empty: random or no weights
  std::optional<ModelFiles> files_;     // over loader_; empty: no tier reads from it
  std::optional<PackedFiles> packed_;   // over files_; empty: no matrix is packed
  std::optional<Packing> packing_;      // of the frozen matrices; nullopt: none is packed
  DType compute_;
  bool random_;
  uint64_t seed_;
};

}  // namespace longshore
