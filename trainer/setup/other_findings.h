// OtherFindings: the conversion of the parts of a configuration of Axolotl, LLaMA-Factory or TRL to
// keys of the run file: data sets, preference losses, adapters, and the settings of DeepSpeed.
// Internal to the conversion of such files; any thread.
//
// Every key of such a file, also below the top level, is converted or reported. Which value of a
// key has no effect depends on the key: `false` is the default of most switches, but not of all.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace longshore {

struct OtherFinding {
  std::string key, why;
  std::string ours{};  // a key of the run file; if it is on the command line, nothing is missing
};

// A key of the run file with its value as TOML.
struct OtherValue {
  std::string key, value;
};

struct OtherFindings {
  std::vector<std::string> read;  // the keys of the file that were read
  std::vector<OtherValue> values;
  // Keys that may change what is trained, that do not, and that cannot be converted.
  std::vector<OtherFinding> left, needless, refused;
};

// OtherReader: reads the members of a file, or of a table in it, and adds to findings. Its
// arguments must outlive it.
class OtherReader {
 public:
  OtherReader(const Json& file, OtherFindings& found) : file_(file), found_(found) {}

  const Json& file() const { return file_; }
  bool has(const char* name) const { return file_.contains(name) && !file_.at(name).is_null(); }
  // Returns the key's value and records that it was read; nullptr if it is missing or null.
  const Json* take(const char* name);
  bool flag(const char* name);    // true
  bool denied(const char* name);  // false, and not missing
  std::optional<double> number(const char* name);
  std::string text(const char* name);
  std::vector<std::string> list(const char* name);

  void set(const std::string& key, const std::string& value) {
    found_.values.push_back({key, value});
  }
  void left(const std::string& key, const std::string& why, const std::string& ours = "") {
    found_.left.push_back({key, why, ours});
  }
  void needless(const std::string& key, const std::string& why) {
    found_.needless.push_back({key, why});
  }
  void refuse(const std::string& key, const std::string& why, const std::string& ours = "") {
    found_.refused.push_back({key, why, ours});
  }

 private:
  const Json& file_;
  OtherFindings& found_;
};

struct OtherDataSets : OtherFindings {
  std::vector<std::string> train, eval;  // paths or hub ids
  std::string keys;                      // data.keys as TOML; may be empty
  std::string prompt_template;           // data.prompt_template; may be empty
};

// Reads `file`, the members of the configuration. `given` replaces the training data that it names,
// if not empty. LLaMA-Factory's names are looked up in dataset_info.json of `dataset_directory`
// (its default if empty).
OtherDataSets read_other_data_sets(const Json& file, const std::vector<std::string>& given,
                                   const std::string& dataset_directory);

// Reads the tokens that `file` of `trainer`, "Axolotl" or "LLaMA-Factory", adds to the tokenizer;
// TRL adds none.
OtherFindings read_other_tokens(const Json& file, std::string_view trainer);

struct OtherPreference : OtherFindings {
  std::string loss;       // train.loss; empty: supervised fine-tuning
  std::string reference;  // preference.reference; empty: the file names no model
};

// Reads `file` of `trainer`: "Axolotl", "LLaMA-Factory" or "TRL".
OtherPreference read_other_preference(const Json& file, std::string_view trainer);

// The trainer's defaults for adapter keys that its file leaves out, and the values that they depend
// on.
struct OtherAdapterDefaults {
  std::string_view trainer;
  int64_t r = 8;
  double alpha = 0.0;  // 0: twice the rank
  double dropout = 0.0;
  double lr = 0.0;             // of the run
  bool drops = true;           // false: the loss is trained without dropout
  bool below_adapter = false;  // the reference of the loss is the model without its adapter
};

struct OtherAdapter : OtherFindings {
  bool packed = false;  // the base has 4 bits
};

OtherAdapter read_other_adapter(const Json& file, const OtherAdapterDefaults& defaults);

// The trainer's defaults for schedule keys that its file leaves out, and the values that they
// depend on.
struct OtherScheduleDefaults {
  std::string_view trainer, name;
  double lr = 0.0;
  double steps = 0.0;  // of the run; 0: unknown
};

OtherFindings read_other_schedule(const Json& file, const OtherScheduleDefaults& defaults);

// Reads the file's `deepspeed`: a table, or the name of a JSON file. `path` is the trainer's
// configuration; the JSON file may be in its directory. With a packed base nothing is offloaded to
// drives.
OtherFindings read_other_deepspeed(const Json& file, const std::string& path, bool packed);

// Converts a chat template: the name of a Jinja file becomes data.chat_template.
void read_jinja(const std::string& key, const std::string& jinja, OtherReader& in);

// Returns the texts of a list, or of a string with commas.
std::vector<std::string> texts_of(const Json& value);
// Returns the number, also from a string: YAML 1.1 reads 1e-4 as a string, which the other trainers
// take for a number.
std::optional<double> number_of(const Json& value);
// Returns the number as a TOML real.
std::string toml_real(double value);
// Returns a plain value as TOML; nullopt for tables and lists.
std::optional<std::string> toml_of(const Json& value);

}  // namespace longshore
