#include "trainer/run_setup.h"

#include <filesystem>

#include "fsdp/engine.h"
#include "offload/plan_inputs.h"

namespace longshore {
namespace {

// Tokens of the training files are not counted yet when the plan is made. A token takes about four
// bytes of text, and eight bytes of memory (token and target).
Bytes estimate_data_bytes(const DataSection& data) {
  Bytes text = 0;
  for (const auto* files : {&data.train, &data.eval}) {
    for (const std::string& path : *files) {
      std::error_code error;
      const auto bytes = std::filesystem::file_size(path, error);
      if (!error) text += static_cast<Bytes>(bytes);
    }
  }
  return text * 2;
}

}  // namespace

RunSetup prepare_run(const RunArguments& arguments) {
  RunSetup setup;
  setup.config = load_run_config(arguments.files, arguments.overrides);
  setup.machine = probe_machine();
  setup.source = std::make_unique<ModelSource>(setup.config);
  const PlanInputs threads = plan_inputs(setup.config, setup.source->spec(), {}, setup.machine);
  setup.inputs = threads;
  setup.inputs.costs =
      unit_costs(setup.source->model(), setup.config.precision.compute, threads.compute_threads);
  setup.inputs.data_bytes = estimate_data_bytes(setup.config.data);
  return setup;
}

}  // namespace longshore
