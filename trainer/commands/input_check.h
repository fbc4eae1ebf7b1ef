// InputCheck: everything a run reads, looked at before anything is allocated: the model, the
// tokenizer and chat template, the first rows of every file, the directories it writes to. Each is
// looked at whatever is wrong with the others. Main thread.
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
  std::unique_ptr<ModelSource> source;  // null where the model cannot be used
  std::vector<InputProblem> problems;
  std::vector<std::string> notes;  // what is allowed, and may not be what the user meant
};

// Keys that are not set are passed over: what must be set is the reader's to say.
CheckedInputs check_inputs(const RunConfig& config);

}  // namespace longshore
