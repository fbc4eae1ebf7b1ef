#include "trainer/run/loaded_run.h"

#include "base/errors.h"
#include "base/log.h"
#include "offload/plan/plan_inputs.h"
#include "trainer/run/measure_workspace.h"
#include "trainer/run/resume_point.h"

namespace longshore {

LoadedRun load_run(const RunArguments& arguments, const std::string& from) {
  LoadedRun run;
  run.setup = prepare_run(arguments);
  measure_workspace(run.setup);
  const RunConfig& config = run.setup.config;
  // Whatever tier the run trains on, here its checkpoint is read into host memory.
  run.setup.inputs.nvme = {};
  const ModelSource& source = *run.setup.source;
  FoundCheckpoint found =
      find_checkpoint(config.run.dir + "/checkpoints", from == "model" ? "never" : from);
  for (const std::string& refused : found.refused) log_warning("refused " + refused);
  run.engine = std::make_unique<Engine>(&source.model(), run.setup.plan(), adamw_options(config));
  run.engine->load([&source](const std::string& name, int64_t begin, std::span<float> out) {
    source.read_initial(name, begin, out);
  });
  run.origin = source.directory().path();
  if (!found.checkpoint) return run;
  const RunProgress& saved = found.checkpoint->manifest().progress;
  if (saved.model_fingerprint != source.directory().fingerprint()) {
    throw CheckpointError(found.checkpoint->path() + ": was made from another model than " +
                          source.directory().path());
  }
  found.checkpoint->restore({source.spec(), run.engine->layouts(), Rank(0)}, run.engine->store());
  run.engine->advance_version();
  run.origin = found.checkpoint->path();
  run.step = saved.step;
  return run;
}

}  // namespace longshore
