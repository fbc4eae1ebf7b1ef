// OtherFindings: the data sets and the loss over preferences that a file of Axolotl, LLaMA-Factory
// or TRL asks for, as the run file says it. Internal to the conversion of such files; any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace longshore {

using KeyAndWhy = std::pair<std::string, std::string>;

struct OtherFindings {
  std::vector<std::string> read;         // the file's keys that were looked at
  std::vector<KeyAndWhy> left, refused;  // what was not converted, and what cannot be
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

struct OtherPreference : OtherFindings {
  std::string loss;                // train.loss; empty: supervised fine-tuning
  std::vector<KeyAndWhy> numbers;  // a key of [preference], and the file's key with its value
  std::string reference;           // preference.reference; empty: the file names no model
};

// Reads `file` of `trainer`: "Axolotl", "LLaMA-Factory" or "TRL".
OtherPreference read_other_preference(const Json& file, std::string_view trainer);

// Returns the texts of a list, or of a string with commas.
std::vector<std::string> texts_of(const Json& value);

}  // namespace longshore
