// Checks everything that a run reads before memory is allocated: model, tokenizer, chat
// template, the first rows of every data file and the output directories. A failed check does not
// stop the others. Main thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "config/run_config.h"
#include "trainer/model/model_source.h"

namespace longshore {

struct InputProblem {
  ExitCode code = ExitCode::kConfig;
  std::string text;
};

struct CheckedInputs {
  std::unique_ptr<ModelSource> source;  // null if the model is unusable
  std::vector<InputProblem> problems;
  std::vector<std::string> notes;  // allowed settings that may be unintended
};

// Skips keys that are not set, because the parser of the run file reports missing keys.
CheckedInputs check_inputs(const RunConfig& config);

// Checks the tokenizer, the chat template and the first rows of every data file alone, before
// anything that takes long.
std::vector<InputProblem> check_data_files(const RunConfig& config, const ModelSource& source);

}  // namespace longshore
