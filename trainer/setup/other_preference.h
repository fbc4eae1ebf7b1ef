// OtherPreference: the loss over preferences that a file of Axolotl, LLaMA-Factory or TRL asks for,
// as the run file says it. Internal to the conversion of such files; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trainer/setup/other_data_sets.h"

namespace longshore {

struct OtherPreference {
  std::string loss;                // train.loss; empty: supervised fine-tuning
  std::vector<KeyAndWhy> numbers;  // a key of [preference], and the file's key with its value
  std::string reference;           // preference.reference; empty: the file names no model
  std::vector<std::string> read;   // the file's keys that were looked at
  std::vector<KeyAndWhy> left, refused;
};

// Reads `file` of `trainer`: "Axolotl", "LLaMA-Factory" or "TRL".
OtherPreference read_other_preference(const Json& file, std::string_view trainer);

}  // namespace longshore
