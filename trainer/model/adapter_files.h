// AdapterFiles: the adapters that a run trains: their settings, and the directory of adapter.path
// that their values come from, if there is one. ModelSource owns it; immutable once
// choose_trained() and sum_reads() were called. Reading is safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "config/run_config.h"
#include "hf/adapter_directory.h"
#include "hf/model_directory.h"
#include "model/families/arch_spec.h"
#include "model/parameters/unit_parameters.h"
#include "shard/unit_spec.h"
#include "trainer/model/base_identity.h"

namespace longshore {

// Returns the name that transformers gives to a parameter of the family's files: gpt2's files may
// lack its "transformer." in front, and those of wrappers have older names.
std::string published_name(std::string_view family, const std::string& parameter);

// Sets adapter.kind to that of the adapter of adapter.path, if the run file has no kind. Throws
// ConfigError or DataError if there is no such adapter.
void take_adapter_kind(RunConfig& config);

class AdapterFiles {
 public:
  // Reads the settings of the run file, or of the adapter that the run starts from, and adds the
  // adapters to `arch`.
  AdapterFiles(const RunConfig& config, ArchSpec& arch);

  // Freezes all of the model but what is trained with the adapters. Throws ConfigError or DataError
  // if the adapter that the run starts from does not fit. `base` has the model's files.
  void choose_trained(const ArchSpec& arch, ModelSpec& whole, const ModelDirectory& base);

  // Returns the settings as adapter_config.json has them: those of the adapter that the run starts
  // from, or those of new ones.
  const AdapterSettings& settings() const { return settings_; }
  // Returns a sentence about keys of the run file that adapter.path replaces; empty without any.
  const std::string& replaced_note() const { return replaced_note_; }
  // Returns the directory of adapter.path; null for new adapters.
  const AdapterDirectory* directory() const { return given_ ? &*given_ : nullptr; }
  // Returns adapter.path.
  const std::string& path() const { return path_; }
  // Returns the model that the adapter of adapter.path was trained over, if it says so.
  const std::optional<BaseIdentity>& made_over() const { return made_over_; }
  // Returns whether that may be another model than the run's (adapter.any_base).
  bool any_base() const { return any_base_; }
  // From now on the files sum what is read of them (SafetensorsFile::sum_reads).
  void sum_reads() {
    if (given_) given_->sum_reads();
  }
  // Returns the name of a trained parameter in PEFT's file, without kAdapterNamePrefix.
  std::string file_name(const std::string& parameter) const;
  // Returns whether the files of adapter.path hold this parameter.
  bool has(const std::string& name) const;
  // Reads values [begin, begin + out.size()) of such a parameter.
  void read(const ParamSpec& parameter, int64_t begin, std::span<float> out) const;

 private:
  void check_trained_twice(const ArchSpec& arch, const ModelSpec& whole) const;
  void check_biases(const ArchSpec& arch, const ModelSpec& whole) const;
  void name_as_peft(const ArchSpec& arch, const ModelSpec& whole);
  void check_tensors(const ArchSpec& arch, const ModelSpec& whole);
  void check_tied_copy(const ModelSpec& whole, const ModelDirectory& base) const;
  // `table` says that the tensor has a row for each token.
  DataError other_shape(const std::string& name, const std::vector<int64_t>& needed,
                        bool table = false) const;
  void find_older_tensors(const ArchSpec& arch, const ModelSpec& whole);
  void check_older_patterns() const;
  void check_older_tensors(const ParamSpec& parameter, std::set<std::string>& unused) const;
  // Reads a whole parameter in the order of this program.
  std::vector<float> read_whole(const ParamSpec& parameter) const;

  std::string family_;                     // of the model
  std::set<std::string> adapted_;          // the modules with an adapter
  std::string path_;                       // adapter.path
  std::optional<AdapterDirectory> given_;  // of adapter.path; empty: new adapters
  std::optional<BaseIdentity> made_over_;
  bool any_base_ = false;
  AdapterSettings settings_;
  std::string replaced_note_;
  // A tensor of an adapter that was made with transformers 4: one of a single expert, or of a
  // router with its older name.
  struct OlderTensor {
    std::string name;
    AdaptedPart part;
  };
  std::map<std::string, std::vector<OlderTensor>> older_;  // by the parameter that they are part of
};

}  // namespace longshore
