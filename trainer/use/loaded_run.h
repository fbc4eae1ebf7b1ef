// LoadedRun: a run's model in memory for evaluation, generation and export, without training.
// Owned by the command; main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "offload/engine/engine.h"
#include "trainer/checkpoint/start_identity.h"
#include "trainer/run/frozen_sums.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

struct LoadedRun {
  MeasuredRun setup;
  std::unique_ptr<FrozenSums> frozen = nullptr;  // null: not read from files
  std::unique_ptr<Engine> engine = nullptr;
  std::string origin = {};  // path of the loaded checkpoint or model
  Step step = {};           // the checkpoint's step; 0: the model itself
  // The identity of the values that the checkpoint's run began with, with those that were read of
  // the model now; without a checkpoint both are those of now.
  StartIdentity start = {};
  StartIdentity found = {};
};

// Loads from "auto" (the run's newest valid checkpoint, else the model), "model", or the directory
// of a checkpoint, of another run or of a model. `at_start` is called while the engine has the
// weights that the run starts from, before those of a checkpoint; its argument `own` is false if
// --from replaces them.
// With `decoding`, which is called before the engine is made, the run is loaded for decoding alone
// (MeasuredRun::plan_for_inference).
using AtStart = std::function<void(const LoadedRun& run, bool own)>;
using Decoding = std::function<DecodeNeeds(const MeasuredRun& setup)>;
LoadedRun load_run(const RunArguments& arguments, const std::string& from,
                   const AtStart& at_start = {}, const Decoding& decoding = {});

}  // namespace longshore
