// OtherFiles: a fixture of tests that convert files of Axolotl, LLaMA-Factory and TRL, and
// questions about what was not converted. A test owns its folder; main thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/errors.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/other_run_file.h"

namespace longshore {

// A dataset_info.json of LLaMA-Factory.
inline constexpr const char* kDatasetInfo = R"({
  "chats": {"file_name": "chats.json", "formatting": "sharegpt",
            "columns": {"messages": "talk", "tools": "tools"}},
  "shared": {"hf_hub_url": "owner/chats", "subset": "en", "formatting": "sharegpt"},
  "rows": {"file_name": "rows.json", "columns": {"prompt": "q", "response": "a"}},
  "pairs": {"file_name": "pairs.json", "ranking": true, "formatting": "sharegpt",
            "columns": {"messages": "conversations", "chosen": "good", "rejected": "rejected"}},
  "judged": {"file_name": "judged.json",
             "columns": {"prompt": "q", "response": "a", "system": "rules", "history": "before",
                         "kto_tag": "liked"}}
})";

// Files of one folder, which is the working directory of a test.
class OtherFiles : public testing::Test {
 protected:
  OtherFiles() : former_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder_.path());
  }
  ~OtherFiles() override { std::filesystem::current_path(former_); }

  static void write(const std::string& name, const std::string& text) {
    std::ofstream(name, std::ios::binary) << text;
  }
  ConvertedRun converted(const std::string& text, const ConversionGiven& given = {}) {
    write("other.yml", text);
    return convert_run_file("other.yml", given);
  }
  RunConfig config_of(const std::string& text, const ConversionGiven& given = {}) {
    return load_run_config({}, converted(text, given).draft.overrides());
  }
  std::string refusal_of(const std::string& text, const ConversionGiven& given = {}) {
    try {
      converted(text, given);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  // Returns the reason for a key that was not converted; "" if it is not in the list.
  static std::string why(const std::vector<NotConverted>& list, const std::string& key) {
    for (const NotConverted& entry : list) {
      if (std::ranges::find(entry.keys, key) != entry.keys.end()) return entry.why;
    }
    return "";
  }

 private:
  TemporaryDirectory folder_;
  std::filesystem::path former_;
};

}  // namespace longshore
