// Converts the configuration of Axolotl, LLaMA-Factory or TRL (YAML or JSON) to a run
// file. Plain values and one function; any thread.
#pragma once

#include <string>
#include <vector>

#include "trainer/setup/run_file_draft.h"

namespace longshore {

// Values that replace those of the file, if not empty. A key that is given also settles what could
// not be converted to that key.
struct ConversionGiven {
  std::string model{};
  std::vector<std::string> data{};
  std::string run_directory{};
  std::vector<DraftKey> keys{};  // of the command line
};

struct NotConverted {
  std::vector<std::string> keys;
  std::string why;
};

struct ConvertedRun {
  std::string trainer;                 // "Axolotl", "LLaMA-Factory", "TRL"
  RunFileDraft draft;                  // a complete run file
  std::vector<NotConverted> left;      // keys that may change what is trained
  std::vector<NotConverted> needless;  // keys that do not
  std::string reminder;                // what users should check in any case; may be empty
};

// Reads the file, LLaMA-Factory's dataset_info.json if it names data sets, and the settings of
// DeepSpeed that it names. Neither the model nor the data has to exist. Throws ConfigError with
// every feature that Longshore lacks and whose absence would change the run, and with every value
// that the run file refuses; the error also names what else was not converted. DataError if the
// file is not YAML.
ConvertedRun convert_run_file(const std::string& path, const ConversionGiven& given);

}  // namespace longshore
