// Inputs of the schedule builder over models and settings, for tests. Pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "offload/schedule/step_schedule.h"
#include "tests/fakes/specs.h"

namespace longshore {

struct ScheduleCase {
  int blocks = 3;
  bool tied = false;
  std::vector<int> frozen;  // frozen units
  int64_t prefetch = 1;
  bool several_ranks = true;  // with gathers and reductions
  int32_t gradient_buffers = 2;
  int32_t input_slots = 0;
  UpdateOverlap overlap = UpdateOverlap::kForward;
  Pass pass = Pass::kTrain;
  int32_t gradient_ring = 0;
  int32_t input_staging = 0;
  int32_t state_slots = 0;
  int32_t parameter_slots = 0;
  int32_t passing = 0;  // 1: the carry passes every other block; 2: all but the first; 3: the first
                        // carry is running
  bool commits = false;
  bool lookup = false;    // the backward of the first unit reads no parameters
  bool ordered = false;   // one collective at a time
  bool adapters = false;  // frozen units have a trained parameter too
  bool results = false;   // the odd blocks keep results beside their inputs

  std::string name() const {
    std::string text = std::to_string(blocks) + (tied ? " blocks, tied" : " blocks");
    for (int unit : frozen) text += ", unit " + std::to_string(unit) + " frozen";
    text += ", prefetch " + std::to_string(prefetch) + (several_ranks ? ", ranks" : ", one rank");
    text +=
        ", " + std::to_string(gradient_buffers) + " gradient buffers, " +
        std::to_string(input_slots) + " input slots, " + std::to_string(input_staging) +
        " staging slots, " + std::to_string(state_slots) + " state slots, " +
        std::to_string(parameter_slots) + " parameter slots, carries " + std::to_string(passing) +
        (commits ? ", commits" : "") + (lookup ? ", lookup" : "") + (ordered ? ", ordered" : "") +
        (adapters ? ", adapters" : "") + (results ? ", results" : "") + ", overlap " +
        std::to_string(static_cast<int>(overlap)) + ", ring of " + std::to_string(gradient_ring);
    if (pass == Pass::kUpdates) return text + ", updates";
    if (pass == Pass::kSweep) return text + ", sweep";
    return text + (pass == Pass::kTrain ? ", train" : ", forward");
  }
};

inline ModelSpec make_case_model(const ScheduleCase& options) {
  ModelSpec model = fakes::make_small_model(options.blocks, options.tied);
  for (int unit : options.frozen) {
    for (ParamSpec& parameter : model.units.at(static_cast<size_t>(unit)).parameters) {
      parameter.frozen = true;
    }
    if (!options.adapters) continue;
    model.units.at(static_cast<size_t>(unit))
        .parameters.push_back(fakes::make_parameter("adapter." + std::to_string(unit), {8}));
  }
  for (size_t u = 2; u + 1 < model.units.size(); ++u) {
    const bool passes = options.passing == 2 || (options.passing == 1 && u % 2 == 0);
    if (passes) model.units[u].carry_out.front().passes = 0;
  }
  for (size_t u = 1; options.results && u + 1 < model.units.size(); u += 2) {
    model.units[u].results = {{.elements_per_position = 4}};
  }
  if (options.passing == 3) model.units[0].carry_out.front().running = true;
  model.units[0].backward_reads_parameters = !options.lookup;
  validate_model_spec(model);
  return model;
}

// Makes the inputs of a case; `model` is the case's and must outlive them. Units differ in size,
// and the smallest slot holds only the second largest, so that not every unit fits everywhere.
inline ScheduleInputs make_case_inputs(const ScheduleCase& options, const ModelSpec& model) {
  PassInputs sizes;
  for (size_t u = 0; u < model.units.size(); ++u) {
    sizes.unit_bytes.push_back(u == 0 ? 9 : 4 + static_cast<Bytes>(u % 3));
  }
  sizes.prefetch = options.prefetch;
  const int64_t slots = std::max<int64_t>(options.prefetch + 1, options.tied ? 2 : 1);
  sizes.slot_bytes.assign(static_cast<size_t>(slots), 9);
  if (slots > 2) sizes.slot_bytes.back() = 6;
  ScheduleInputs inputs;
  inputs.model = &model;
  inputs.pass = options.pass;
  inputs.executions = plan_pass(model, options.pass, sizes);
  inputs.gathers = inputs.reduces = options.several_ranks;
  inputs.ordered_collectives = options.ordered;
  inputs.gradient_buffers = options.gradient_buffers;
  inputs.input_slots = options.input_slots;
  inputs.keep_results = options.results ? KeptResults::kMlp : KeptResults::kNone;
  inputs.overlap = options.overlap;
  inputs.gradient_ring = options.gradient_ring;
  inputs.input_staging = options.input_staging;
  inputs.state_slots = options.state_slots;
  inputs.parameter_slots = options.parameter_slots;
  inputs.commits = options.commits;
  return inputs;
}

// Returns every combination of models, prefetch depths, ranks, buffers, activation checkpoints,
// updates and passes. Further settings vary in rotation where they apply: rings of none to three
// host gradients, staging slots for drives, state and parameters on drives, frozen parameters in
// files, carries that pass, results that are kept, and ordered collectives.
inline std::vector<ScheduleCase> all_schedule_cases() {
  std::vector<ScheduleCase> cases;
  const auto add_drives = [&cases] {
    cases.back().passing = static_cast<int32_t>(cases.size() % 11 % 4);
    const size_t turn = cases.size() % 7;  // a prime, so every other setting meets each value
    cases.back().lookup = cases.size() % 5 == 1;
    cases.back().ordered = cases.size() % 4 > 1;
    cases.back().results = cases.size() % 13 < 5;
    if (turn == 1) {  // frozen parameters in files
      cases.back().parameter_slots = static_cast<int32_t>(1 + cases.size() / 7 % 3);
      cases.back().adapters = cases.size() / 7 % 2 == 1;
    }
    if (turn < 2) return;
    cases.back().commits = cases.size() % 3 > 0;
    cases.back().state_slots = static_cast<int32_t>(1 + turn % 3);
    if (turn >= 4) cases.back().parameter_slots = static_cast<int32_t>(turn - 3);
  };
  const std::vector<std::vector<int>> frozen = {{}, {0, 1}, {2}, {0, 1, 2, 3}};
  for (int blocks : {2, 3, 6}) {
    for (bool tied : {false, true}) {
      for (const std::vector<int>& units : frozen) {
        for (int64_t prefetch : {0, 1, 2, 3}) {
          for (bool ranks : {false, true}) {
            for (int32_t buffers : {1, 2, 3}) {
              for (int32_t inputs : {0, 2, 3}) {
                for (UpdateOverlap overlap :
                     {UpdateOverlap::kNone, UpdateOverlap::kForward, UpdateOverlap::kBackward}) {
                  cases.push_back({blocks, tied, units, prefetch, ranks, buffers, inputs, overlap});
                  if (inputs > 0) {
                    cases.back().input_staging = static_cast<int32_t>(cases.size() / 3 % 4);
                  }
                  add_drives();
                  if (overlap != UpdateOverlap::kBackward) continue;
                  cases.back().gradient_ring = static_cast<int32_t>(cases.size() % 4);
                }
              }
              cases.push_back({blocks, tied, units, prefetch, ranks, buffers, 2,
                               UpdateOverlap::kForward, Pass::kForward});
              add_drives();
              for (const Pass pass : {Pass::kUpdates, Pass::kSweep}) {
                cases.push_back({blocks, tied, units, prefetch, ranks, buffers, 0,
                                 UpdateOverlap::kForward, pass});
                add_drives();
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

}  // namespace longshore
