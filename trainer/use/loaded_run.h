// LoadedRun: a run's model in memory for evaluation, generation and export, without training.
// Owned by the command; main thread.
#pragma once

#include <memory>
#include <string>

#include "offload/engine/engine.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

struct LoadedRun {
  MeasuredRun setup;
  std::unique_ptr<Engine> engine = nullptr;
  std::string origin = {};  // what was loaded: a checkpoint's path, or the model's
  Step step = {};           // 0: the model itself
};

// `from`: "auto" (the run's newest valid checkpoint, else the model), "model", or a checkpoint's
// directory.
LoadedRun load_run(const RunArguments& arguments, const std::string& from);

}  // namespace longshore
