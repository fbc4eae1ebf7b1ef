#include "trainer/run_setup.h"

#include <filesystem>

#include "base/errors.h"
#include "fsdp/engine.h"
#include "offload/adamw_rule.h"
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

// A table of positions has an end; rotary positions have none.
void check_positions(const RunConfig& config, const ArchSpec& arch) {
  if (arch.position != PositionKind::kLearned || config.data.max_tokens <= arch.max_positions) {
    return;
  }
  throw ConfigError("data.max_tokens = " + std::to_string(config.data.max_tokens) +
                    " is more than the " + std::to_string(arch.max_positions) + " positions that " +
                    arch.origin + " has; lower data.max_tokens");
}

}  // namespace

RunSetup prepare_run(const RunArguments& arguments) {
  RunSetup setup;
  setup.config = load_run_config(arguments.files, arguments.overrides);
  setup.machine = probe_machine();
  // Before the model: its tables are LibTorch's first computation.
  setup.compute = set_compute_threads(compute_threads(setup.config, setup.machine));
  setup.source = std::make_unique<ModelSource>(setup.config);
  check_positions(setup.config, setup.source->model().arch());
  check_groups(adamw_options(setup.config), setup.source->spec());
  setup.inputs = plan_inputs(
      setup.config, setup.source->spec(),
      unit_costs(setup.source->model(), setup.config.precision.compute, setup.compute.threads),
      setup.machine);
  setup.inputs.data_bytes = estimate_data_bytes(setup.config.data);
  return setup;
}

}  // namespace longshore
