#include "trainer/use/loaded_run.h"

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/log.h"
#include "config/field_table.h"
#include "config/toml_document.h"
#include "hf/adapter_directory.h"
#include "offload/forecast/decode_forecast.h"
#include "offload/plan/plan_from_config.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/model/base_identity.h"
#include "trainer/model/frozen_check.h"
#include "trainer/run/drive_state.h"
#include "trainer/run/run_checkpoints.h"
#include "trainer/setup/plan_forecast.h"

namespace longshore {

namespace {

// The source that --from names.
struct Weights {
  std::optional<std::string> model = {};    // model directory that replaces model.path
  std::optional<std::string> adapter = {};  // adapter directory that replaces adapter.path
  std::string folder = {};                  // folder of checkpoints; empty: the run's own
  std::string checkpoint = {};              // a value of checkpoint.resume
};

Weights find_weights(const std::string& from) {
  namespace fs = std::filesystem;
  if (from == "auto") return {.checkpoint = "auto"};
  if (from == "model") return {.checkpoint = "never"};
  std::error_code ignored;
  if (!fs::is_directory(from, ignored)) {
    throw ConfigError("--from " + from +
                      ": no such directory; expected auto, model, or the directory " +
                      "of a checkpoint, of a run, of a model or of an adapter");
  }
  if (fs::exists(from + "/" + std::string(kAdapterConfigName), ignored)) {
    return {.adapter = from, .checkpoint = "never"};
  }
  if (fs::exists(from + "/config.json", ignored)) return {.model = from, .checkpoint = "never"};
  const std::string inside = from + "/checkpoints";
  if (!fs::is_directory(inside, ignored)) return {.checkpoint = from};
  if (list_checkpoints(inside).empty()) {
    throw CheckpointError("--from " + from + ": this run has no checkpoint yet");
  }
  return {.folder = inside, .checkpoint = "auto"};
}

// Sets the keys of [adapter] to their defaults, and the key that needs adapters, independent of the
// run file.
void forget_adapter(std::vector<Override>& overrides) {
  overrides.push_back({"checkpoint.export", "\"never\""});
  for (const Key& key : find_section("adapter")->keys) {
    overrides.push_back({key.full_name(), toml_text(key, key.default_value())});
  }
}

// Throws CheckpointError unless the frozen values are those that the checkpoint's run began with. A
// model that stays in its files is read once for it, before any result is printed or written.
void check_frozen_model(LoadedRun& run) {
  const ModelSource& source = *run.setup.source;
  if (run.engine->plan().frozen_in_files) read_rest_of_frozen(source);
  run.found = read_identity(source, nullptr);
  const std::string difference =
      frozen_difference(run.start, run.found, source, "when the run began");
  if (!difference.empty()) throw CheckpointError(difference);
  const std::string note = not_compared(run.start, run.found, source, "they were not read");
  if (!note.empty()) log_info(note);
}

// Throws ConfigError if the adapter that the weights begin with was trained over another model. A
// model that stays in its files is read for it, before any result is printed or written.
void check_base(LoadedRun& run) {
  const ModelSource& source = *run.setup.source;
  if (!source.has_adapter()) return;
  if (run.engine->plan().frozen_in_files && compares_base(source)) read_rest_of_frozen(source);
  run.start = run.found = read_identity(source, nullptr);
  const std::string difference = base_difference(source, run.found);
  if (!difference.empty()) throw ConfigError(difference);
  const std::string note = base_note(source);
  if (!note.empty()) log_info(note);
}

// Sets an adapter over the same base, which replaces the adapter of the run file.
void take_adapter(std::vector<Override>& overrides, const std::string& path) {
  const auto is_any_base = [](const Override& said) { return said.key == "adapter.any_base"; };
  std::erase_if(overrides, [&](const Override& said) {
    return said.key.starts_with("adapter.") && said.key != "adapter.base" && !is_any_base(said);
  });
  // The key in the run file is about the adapter that the run file names.
  if (std::ranges::none_of(overrides, is_any_base))
    overrides.push_back({"adapter.any_base", "false"});
  const bool dora = AdapterDirectory::open(path).settings().dora;
  overrides.push_back({"adapter.kind", dora ? "\"dora\"" : "\"lora\""});
  overrides.push_back({"adapter.path", quote_toml(path)});
}

}  // namespace

LoadedRun load_run(const RunArguments& arguments, const std::string& from, const AtStart& at_start,
                   const Decoding& decoding) {
  const Weights weights = find_weights(from);
  RunArguments asked = arguments;
  if (weights.adapter) take_adapter(asked.overrides, *weights.adapter);
  if (weights.model) {
    forget_adapter(asked.overrides);
    asked.overrides.push_back({"offload.parameters", "host"});  // nothing of it is frozen
    asked.overrides.push_back({"model.path", quote_toml(*weights.model)});
    asked.overrides.push_back({"model.init", "pretrained"});
  }
  LoadedRun run{.setup = MeasuredRun(OpenedRun(read_run(asked, {}, SetupFor::kComputing)))};
  const RunConfig& config = run.setup.config;
  const ModelSource& source = *run.setup.source;
  FoundCheckpoint found =
      find_checkpoint(weights.folder.empty() ? config.run.dir + "/checkpoints" : weights.folder,
                      weights.checkpoint);
  for (const std::string& refused : found.refused) log_warning("refused " + refused);
  if (source.packing().frozen() != nullptr) {
    run.frozen = std::make_unique<FrozenSums>(source.packing().frozen());
  }
  std::optional<DecodeNeeds> needs;
  if (decoding) needs = decoding(run.setup);
  const TierPlan plan = run.setup.plan_for_inference(needs);
  if (needs) {
    log_info(describe_decoding(plan, PlanForecast(&run.setup).decoded_per_second(plan)));
  }
  run.engine =
      std::make_unique<Engine>(&source.model(), plan, update_rule(config), RankGroups{}, RunKey{},
                               EmulatedDevice{.make_tiers = make_tiers_over(run.frozen.get())});
  const std::string found_weights = load_initial_weights(*run.engine, source, nullptr);
  if (!found_weights.empty()) {
    log_warning(found_weights + "; results computed with them are meaningless");
  }
  run.origin = weights.adapter.value_or(source.directory().path());
  if (at_start) at_start(run, !weights.model && !weights.adapter);
  if (!found.checkpoint) {
    if (source.base().random()) log_warning(source.base().random_weights_text());
    check_base(run);
    return run;
  }
  const RunProgress& saved = found.checkpoint->manifest().progress;
  const std::string problem = model_difference(saved, found.checkpoint->path(), source);
  if (!problem.empty()) throw CheckpointError(problem);
  check_corrections(saved, source, found.checkpoint->path());
  run.start = saved.start;
  check_frozen_model(run);
  restore_checkpoint(*found.checkpoint, *run.engine);
  if (!saved.router_corrections.empty()) {
    run.engine->set_router_corrections(saved.router_corrections);
  }
  run.origin = found.checkpoint->path();
  run.step = saved.step;
  return run;
}

}  // namespace longshore
