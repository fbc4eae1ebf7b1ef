#include "trainer/loop/started_run.h"

#include <array>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "base/texts.h"
#include "offload/plan/plan_from_config.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_moments.h"
#include "trainer/directory/drive_record.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/loop/lr_schedule.h"
#include "trainer/model/base_identity.h"
#include "trainer/model/model_notes.h"
#include "trainer/model/trained_text.h"
#include "trainer/run/drive_state.h"
#include "trainer/run/run_checkpoints.h"
#include "trainer/run/signal_flag.h"
#include "trainer/use/reference_logps.h"
#include "trainer/use/reference_model.h"

namespace longshore {
namespace {

constexpr Bytes kMostRecordBytes = 64 * kMiB;

// Returns what rank 0 logs about the data: less if the run resumes an earlier start.
Say said_of_data(const MeasuredRun& setup, const RunDirectory& directory) {
  if (!setup.ranks->first()) return Say::kNone;
  return is_resuming(setup.config, directory) ? Say::kSum : Say::kAll;
}

// Prepares the data; a stop signal may interrupt it at any moment.
SequenceData load_until_stopped(const MeasuredRun& setup, const SignalFlag& signals, Say say) {
  const HurriedStop hurried(signals);
  return load_sequences(setup.config, *setup.source, SequenceUse::kTrain, stop_check_of(signals),
                        say);
}

std::vector<EvaluationSet> load_sets_until_stopped(const MeasuredRun& setup,
                                                   const SignalFlag& signals, Say say) {
  const HurriedStop hurried(signals);
  return load_evaluation_sets(setup.config, *setup.source, stop_check_of(signals), say);
}

// Writes eval.prompts. Throws if one does not fit, instead of at the first evaluation.
SampleRequest sample_request(const RunConfig& config, const PromptWriter& writer,
                             const PromptLimits& limits) {
  SampleRequest request{.prompts = {},
                        .settings = {.stops = writer.stops(),
                                     .max_new_tokens = config.eval.max_new_tokens,
                                     .sampling = {.seed = static_cast<uint64_t>(config.run.seed)}}};
  for (const std::string& text : config.eval.prompts) {
    request.prompts.push_back(writer.write(text));
    const std::string problem =
        problem_of(request.prompts.back(), config.eval.max_new_tokens, limits);
    if (!problem.empty()) throw ConfigError("eval.prompts: " + problem);
  }
  return request;
}

PromptWriter::Form sample_form(const RunConfig& config, const SequenceData& trained) {
  const EvalSection::PromptFormat asked = config.eval.prompt_format;
  const bool messages = asked == EvalSection::PromptFormat::kAuto
                            ? trained.conversations
                            : asked == EvalSection::PromptFormat::kMessages;
  return messages ? PromptWriter::Form::kMessages : PromptWriter::Form::kText;
}

void agree_with_ranks(const StartedRun& run, const TierPlan& plan) {
  World& world = run.ranks().world();
  // Plans may differ between machines: a rank with a smaller GPU keeps fewer units.
  world.agree("the order of collectives", describe_collectives(plan.step.schedules));
  world.agree("the training data", hash_text(run.data.fingerprint()) + "\n");
  std::string sets;
  for (const EvaluationSet& set : run.eval_sets) {
    sets += set.name + " " + hash_text(set.data.dataset->fingerprint()) + "\n";
  }
  if (!sets.empty()) world.agree("the evaluation data", sets);
}

// Says how many sequences of the next pass fill the last step of a run of epochs.
void say_last_step(const StartedRun& run) {
  const RunConfig& config = run.setup.config;
  const int64_t last = run.data.total_steps();
  if (config.train.steps > 0 || !run.ranks().first()) return;
  if (run.ledger.progress.step.value >= last) return;  // the run took that step before
  const double seen = run.data.epochs_after(Step(last));
  const auto sequences = static_cast<double>(run.data.sequence_count());
  const int64_t more = std::llround((seen - std::ceil(config.train.epochs)) * sequences);
  if (more <= 0) return;
  log_info("train.epochs = " + formatted("%g", config.train.epochs) + ": of the last step's " +
           std::to_string(config.train.sequences_per_step) + " sequences " + std::to_string(more) +
           " are from the next pass over the data");
}

// Returns why the run cannot resume from `saved`, found at `path`; empty if it can.
std::string difference_from(const StartedRun& run, const RunProgress& saved,
                            const std::string& path) {
  RunProgress known = saved;  // commits on drives lack the run file, which the directory has
  if (known.config_text.empty()) known.config_text = run.directory.read_config();
  const std::string other_model = model_difference(known, path, *run.setup.source);
  if (!other_model.empty()) return other_model;
  if (saved.data.fingerprint != run.data.fingerprint() || saved.seed != run.ledger.progress.seed) {
    const bool by_default = run.data.data().report.total().chat_prompts > 0;
    return path +
           ": the training data, its tokens or run.seed changed since; restore them, or start over "
           "with checkpoint.resume = \"never\"" +
           (by_default ? "; the chat template writes rows with an instruction now, as Longshore "
                         "did not at first: data.prompt_template = \"alpaca\" restores that"
                       : "");
  }
  return {};
}

// Throws CheckpointError if the newest checkpoint is from another run. It reads only manifests,
// before anything is allocated; a later full read finds damage. Collective.
void refuse_other_run(const StartedRun& run) {
  const std::string& resume = run.setup.config.checkpoint.resume;
  std::string problem;
  if (run.ranks().first() && resume != "never") {
    std::vector<std::string> paths = {resume};
    if (resume == "auto") {
      paths.clear();
      for (const CheckpointEntry& entry : list_checkpoints(run.directory.checkpoints())) {
        paths.push_back(entry.path);
      }
    }
    for (const std::string& path : paths) {
      try {
        problem = difference_from(run, Checkpoint::open(path).manifest().progress, path);
        break;
      } catch (const CheckpointError&) {
        // find_checkpoint reports a damaged checkpoint later.
      }
    }
  }
  problem = run.ranks().world().exchange("whether the run is the same", problem).front();
  if (!problem.empty()) throw CheckpointError(problem);
}

// Returns a check for passes that all ranks run together: one rank alone must not leave them.
StopCheck stop_of_pass(const StartedRun& run) {
  return run.ranks().info().size > 1 ? StopCheck([] {}) : stop_check_of(run.signals);
}

// Returns the name of the file with the values of an evaluation set.
std::string reference_file(const EvaluationSet& set) {
  return "reference_eval" + (set.name.empty() ? "" : "_" + set.name);
}

// Takes the values of a model that is not the run's start: from the run's directory, or computed
// and kept there. Its memory is free again on return. Collective.
void take_other_references(StartedRun& run) {
  const RunConfig& config = run.setup.config;
  if (!has_other_reference(config)) return;
  OpenedRun opened = open_other_reference(run.setup);
  const bool first = run.ranks().first();
  std::vector<const SequenceData*> data = {&run.data.data()};
  std::vector<std::string> paths = {run.directory.file("other_reference_train")}, keys;
  for (const EvaluationSet& set : run.eval_sets) {
    data.push_back(&set.data);
    paths.push_back(run.directory.file("other_" + reference_file(set)));
  }
  for (const SequenceData* const one : data) {
    keys.push_back(other_reference_key(opened, *one));
  }
  OtherReference& found = run.other_reference;
  std::vector<std::vector<double>> values;
  try {
    for (size_t i = 0; i < data.size(); ++i) {
      References kept = read_reference(paths[i], keys[i], reference_count(*data[i]), run.ranks());
      found.model = kept.model;
      values.push_back(std::move(kept.values));
    }
  } catch (const CheckpointError&) {
    // No file, or one of other data or another model: the values can be computed at any time.
    const MeasuredRun reference = measured_reference(config, std::move(opened));
    if (first) log_info(describe_other_reference(reference));
    ComputedReference computed = compute_other_reference(reference, data, stop_of_pass(run));
    found.model = computed.model;
    values = std::move(computed.values);
    for (size_t i = 0; first && i < data.size(); ++i)
      found.unwritten.push_back({paths[i], keys[i]});
  }
  const std::shared_ptr<const Loss> loss = loss_of(config);
  run.objective = Objective{.loss = loss, .references = std::move(values[0])};
  for (size_t i = 0; i < run.eval_sets.size(); ++i) {
    run.eval_sets[i].objective = Objective{.loss = loss, .references = std::move(values[i + 1])};
  }
}

// Throws CheckpointError if preference.reference names a model of other values than the run began
// with: its steps would compare with two models. The model's directory may have been replaced, or
// the kept values may be of another run.
void check_other_reference(StartedRun& run) {
  const std::string& found = run.other_reference.model;
  StartIdentity& start = run.ledger.progress.start;
  std::string problem;
  if (!found.empty() && run.start_check.is_resuming() && !start.reference.empty() &&
      found != start.reference) {
    problem =
        "preference.reference: the model has other values than when this run began; restore "
        "its files, or start over with checkpoint.resume = \"never\"";
  }
  problem = run.ranks().world().exchange("the reference model", problem).front();
  if (!problem.empty()) throw CheckpointError(problem);
  if (!found.empty()) start.reference = found;
}

// Keeps the values of another reference that this start computed. Rank 0 calls it.
void write_references(StartedRun& run) {
  OtherReference& found = run.other_reference;
  for (size_t i = 0; i < found.unwritten.size(); ++i) {
    const Objective& objective = i == 0 ? *run.objective : *run.eval_sets[i - 1].objective;
    write_reference(found.unwritten[i].path, found.unwritten[i].key,
                    {.values = objective.references, .model = found.model});
  }
  found.unwritten.clear();
}

// Makes all checks before the engine allocates, and returns the key of the state files on drives;
// the key is unused without drives. Collective.
RunKey check_run(StartedRun& run, const TierPlan& plan) {
  const RunConfig& config = run.setup.config;
  const ModelSource& source = *run.setup.source;
  RunProgress& progress = run.ledger.progress;
  progress.seed = static_cast<uint64_t>(config.run.seed);
  progress.model_fingerprint = source.fingerprint();
  progress.config_text = to_toml(config);
  agree_with_ranks(run, plan);
  const SequenceData& trained = run.data.data();
  for (const std::string& note : end_notes(trained.ends, trained.conversations, source)) {
    if (run.ranks().first()) log_warning(note);
  }
  for (const std::string& note : model_notes(source)) {
    if (run.ranks().first()) log_warning(note);
  }
  const std::string note = is_resuming(config, run.directory) ? "" : base_note(source);
  if (!note.empty() && run.ranks().first()) log_info(note);
  if (!run.eval_sets.empty() && !config.eval.prompts.empty()) {
    run.prompts.emplace(config, source.directory(), sample_form(config, trained),
                        "eval.prompt_format");
    run.samples = sample_request(
        config, *run.prompts,
        {.longest = plan.decode.longest, .vocabulary = vocabulary_of(source.spec())});
  }
  refuse_other_run(run);
  take_other_references(run);
  return plan.drives.tier.state ? resolve_drive_state(run.setup, plan, run.directory.path())
                                : RunKey{};
}

// Says by how much the learning rate changes between the last step of `saved` and the next one, if
// the run file gives the next one another rate than it did.
void say_new_schedule(const StartedRun& run, const RunProgress& saved) {
  if (!run.ranks().first()) return;
  const std::optional<RunConfig> before =
      rates_of(saved.config_text.empty() ? run.directory.read_config() : saved.config_text);
  if (!before) return;
  const std::string change = rate_change({*before, run.data.steps_of(before->train)},
                                         {run.setup.config, run.data.total_steps()}, saved.step);
  if (!change.empty()) log_info(change);
}

// Makes the run continue `saved`, found at `path`.
void continue_from(StartedRun& run, const RunProgress& saved, const std::string& path) {
  const std::string problem = difference_from(run, saved, path);
  if (!problem.empty()) throw CheckpointError(problem);
  const std::string note = run.data.resume_at(saved.step, saved.data, path);
  if (!note.empty() && run.ranks().first()) log_warning(note);
  run.engine.set_updates(saved.adam_step);
  RunProgress& progress = run.ledger.progress;
  progress.step = saved.step;
  progress.adam_step = saved.adam_step;
  progress.skipped_total = saved.skipped_total;
  progress.skipped_in_row = saved.skipped_in_row;
  progress.start = saved.start;
  check_corrections(saved, *run.setup.source, path);
  if (!saved.router_corrections.empty()) {
    run.engine.set_router_corrections(saved.router_corrections);
  }
  if (saved.step.value == 0) return;
  say_new_schedule(run, saved);
  log_info("resumed from " + path + " after step " + std::to_string(saved.step.value));
}

// Resumes from the last step that the state's tier committed; false if there is none.
bool resume_from_tier(StartedRun& run) {
  const std::optional<DurablePoint> point = run.engine.commits().start(random_word());
  if (!point) return false;
  const CommittedSteps acknowledged =
      agree_on_committed_steps(run.directory.path(), run.ranks().world());
  if (acknowledged.step > point->step && run.ranks().first()) {
    log_warning("step " + std::to_string(acknowledged.step) +
                " was committed, but is damaged on the drives (see the lines above); the run "
                "resumes from the previous version, after step " +
                std::to_string(point->step));
  }
  RunProgress saved = read_commit_note(point->note, Step(point->step), run.directory.path());
  saved.start = run.start_check.recorded();
  run.start_check.resumes_from(StartCheck::From::kDrives);
  continue_from(run, saved, "the state on the drives");
  run.engine.advance_version();
  return true;
}

// Throws CheckpointError if a start after step `start` would lose committed steps.
void check_start(const StartedRun& run, Step start) {
  if (run.setup.config.checkpoint.resume != "auto") return;
  const std::string& path = run.directory.path();
  const CommittedSteps acknowledged = agree_on_committed_steps(path, run.ranks().world());
  if (acknowledged.beyond(start.value)) refuse_lost_steps(acknowledged, start.value, path);
}

void resume_from_checkpoint(StartedRun& run) {
  const std::string& resume = run.setup.config.checkpoint.resume;
  const std::string folder = run.directory.checkpoints();
  const bool first = run.ranks().first();
  // A killed process may have left partial files, or a checkpoint that must be restored.
  if (first) clean_leftovers(folder);
  const FoundCheckpoint found = find_checkpoint(folder, resume, run.ranks().world());
  check_start(run, found.checkpoint ? found.checkpoint->manifest().progress.step : Step(0));
  for (const std::string& refused : found.refused) {
    log_warning("refused " + refused + "; an older checkpoint is used");
  }
  if (!found.checkpoint) {
    const int64_t steps =
        first && resume == "auto" ? last_step_of_metrics(run.directory.metrics_file()) : 0;
    // The frozen values are then those of the start that left no checkpoint.
    if (resume == "auto") run.ledger.progress.start = run.start_check.recorded();
    if (steps > 0) {
      log_warning("the run restarts at step 0: it had reached step " + std::to_string(steps) +
                  ", and no checkpoint was saved (checkpoint.every_steps)");
    }
    return;
  }
  const std::string& path = found.checkpoint->path();
  const std::string rounding =
      describe_rounding(found.checkpoint->manifest(), run.engine.plan().state.format);
  if (!rounding.empty()) log_warning(path + ": " + rounding);
  run.start_check.resumes_from(StartCheck::From::kCheckpoint);
  continue_from(run, found.checkpoint->manifest().progress, path);
  restore_checkpoint(*found.checkpoint, run.engine);
  run.ledger.note_saved(path);
}

// Returns data.json as an earlier start wrote it; null if it is missing or damaged.
Json recorded_data(const RunDirectory& directory) {
  try {
    const std::string path = directory.file("data.json");
    return parse_json(read_own_file(path, kMostRecordBytes), {}, path);
  } catch (const Error&) {
    return {};
  }
}

// Updates the run's directory after all ranks have passed every check, and returns the inputs that
// differ from those of the previous start. Collective.
InputChanges begin_record(StartedRun& run, const std::function<void(Step)>& begin) {
  run.ranks().world().exchange("the start of the run", "");
  if (!run.ranks().first()) return {};
  const Step step = run.ledger.progress.step;
  begin(step);
  run.start_check.begin_record(run.ledger.progress.start);
  write_references(run);
  clean_leftovers(run.directory.checkpoints());
  for (const std::string& path : set_aside_newer(run.directory.checkpoints(), step)) {
    log_warning("a newer checkpoint, of an abandoned history of this run, is now in " + path);
  }
  Json files = {{"train", to_json(run.data.data())}};
  for (const EvaluationSet& set : run.eval_sets) {
    files[set.name.empty() ? "eval" : "eval/" + set.name] = to_json(set.data);
  }
  InputChanges changes;
  if (step.value > 0) changes = changed_inputs(recorded_data(run.directory), files);
  for (const std::string& warning : changes.warnings) log_warning(warning);
  run.directory.write("data.json", json_text(files, 2) + "\n");
  run.directory.write_chat_template(run.data.data().chat_template);
  return changes;
}

// Commits the state that a run begins with, if the tier commits.
void commit_start(StartedRun& run) {
  if (!run.engine.commits().commits()) return;
  run.engine.commit(run.durable_step(run.ledger.progress));
  run.note_commit();
}

// Opens the metrics, cut after the step that the run resumes from. Collective.
void open_metrics(StartedRun& run, const InputChanges& changes) {
  std::string evaluated;
  if (run.ranks().first()) {
    const Step step = run.ledger.progress.step;
    const std::string path = run.directory.metrics_file();
    // The metrics of an abandoned history are kept in another file.
    if (run.setup.config.checkpoint.resume != "auto") {
      const std::string kept = MetricsFile::set_aside(path, step);
      if (!kept.empty()) log_info("the metrics of the abandoned history are in " + kept);
      // The commits of an abandoned history no longer count.
      if (!run.ledger.is_committed()) note_committed(run.directory.path(), false);
    }
    MetricsFile metrics =
        step.value == 0 ? MetricsFile::begin(path) : MetricsFile::resume(path, step);
    if (run.setup.config.log.tensorboard) {
      metrics.copy_to_events(run.directory.file("tensorboard"), Step(step.value + 1));
    }
    run.reporter.open(std::move(metrics));
    if (changes.evaluation) {
      run.reporter.write(EventRecord{.level = "warning",
                                     .code = kOtherEvaluationData,
                                     .rank = 0,
                                     .text = changes.warnings.back()});
    }
    evaluated = EvalTracker::of_metrics(path).text();
  }
  run.evaluations =
      EvalTracker::of_text(run.ranks().world().exchange("the best evaluation", evaluated).front());
}

// Returns the run's loss, with the reference's values of `data` if it needs them: computed and kept
// under `name` at the start of a run, read from there when it resumes. Collective.
Objective objective_of(StartedRun& run, const SequenceData& data, const std::string& name) {
  const RunConfig& config = run.setup.config;
  Objective objective{.loss = loss_of(config)};
  if (!objective.loss->traits().reference) return objective;
  const bool first = run.ranks().first();
  const std::string path = run.directory.file(name);
  const std::string& values = run.ledger.progress.start.values;
  const auto key = [&] {
    // Earlier versions did not know the values that a run began with.
    return reference_key(
        config, run.setup.source->fingerprint() + (values.empty() ? "" : " with values " + values),
        data);
  };
  if (run.ledger.progress.step.value == 0) {
    objective.references = compute_reference(run.engine, data, objective.loss,
                                             config.train.micro_batch.value(), stop_of_pass(run));
    run.check_frozen(/*passed=*/true);  // the pass has read what stays in files
    if (!first) return objective;
    write_reference(path, key(), {.values = objective.references});
    log_info("computed the reference's log-probabilities of " +
             std::to_string(objective.references.size()) + " answers: " + path);
    return objective;
  }
  objective.references = read_reference(path, key(), reference_count(data), run.ranks()).values;
  return objective;
}

}  // namespace

bool is_resuming(const RunConfig& config, const RunDirectory& directory) {
  if (config.checkpoint.resume == "never") return false;
  if (directory.read_config() == to_toml(config)) return true;
  const std::optional<RunStatus> before = RunDirectory::read_status(directory.path());
  return before && before->saved_step && before->saved_step->value > 0;
}

StopCheck stop_check_of(const SignalFlag& signals) {
  return [&signals] {
    if (signals.stop_requested()) throw Stopped(signals.stop_exit_code());
  };
}

StartedRun::StartedRun(const MeasuredRun& setup, const TierPlan& plan,
                       const RunDirectory& directory, SignalFlag& signals,
                       const std::function<void(Step)>& begin, TraceFile* trace)
    : setup(setup),
      directory(directory),
      signals(signals),
      ledger(&directory, setup.ranks->first()),
      data(setup.config, load_until_stopped(setup, signals, said_of_data(setup, directory))),
      eval_sets(load_sets_until_stopped(setup, signals, said_of_data(setup, directory))),
      frozen(setup.source->packing().frozen() == nullptr
                 ? nullptr
                 : std::make_unique<FrozenSums>(setup.source->packing().frozen())),
      start_check(setup.source.get(), &directory, &setup.ranks->world()),
      engine(&setup.source->model(), plan, update_rule(setup.config), setup.ranks->groups(),
             check_run(*this, plan), {.make_tiers = make_tiers_over(frozen.get())}),
      reporter(&engine, setup.ranks->first(),
               LiveLine::options_of_stderr(setup.config.log.every_steps)) {
  if (trace != nullptr) {
    engine.set_observer([this, trace](const StepSchedule& schedule, std::span<const OpTime> times) {
      trace->add(schedule, times, this->setup.source->spec(), ledger.progress.step);
    });
  }
  if (std::vector<float> corrections = initial_corrections(*setup.source); !corrections.empty()) {
    engine.set_router_corrections(std::move(corrections));
  }
  const bool kept = resume_from_tier(*this);
  if (!kept) {
    const std::string found = load_initial_weights(engine, *setup.source, &ranks().world());
    if (!found.empty() && ranks().first()) {
      log_warning(found + "; steps that meet them are skipped");
    }
    resume_from_checkpoint(*this);
  }
  const RunProgress& progress = ledger.progress;
  check_frozen(/*passed=*/false);
  check_other_reference(*this);
  check_schedule(setup.config.schedule, data.total_steps(), ranks().first());
  say_last_step(*this);
  const InputChanges changes = begin_record(*this, begin);
  if (kept) {
    ledger.note_committed(progress.step);
  } else {
    commit_start(*this);
  }
  // The warning is never silent, because the user may have expected the directory's weights.
  if (progress.step.value == 0 && setup.source->base().random() && ranks().first()) {
    log_warning(setup.source->base().random_weights_text());
  }
  open_metrics(*this, changes);
  reporter.write(StartRecord{.plan = "device " + format_bytes(plan.device.total) + ", host " +
                                     format_bytes(plan.host.total),
                             .config_hash = hash_text(hash64(progress.config_text)),
                             .ranks = ranks().info().size,
                             .resumed_from = progress.step});
  ledger.note_status(reporter, signals);
  if (!objective) objective = objective_of(*this, data.data(), "reference_train");
  for (EvaluationSet& set : eval_sets) {
    if (!set.objective) set.objective = objective_of(*this, set.data, reference_file(set));
  }
  reporter.begin_steps();
}

DataState StartedRun::data_after_step() const {
  return {.cursor = data.cursor_after(ledger.progress.step),
          .sequences = data.sequence_count(),
          .fingerprint = data.fingerprint()};
}

DurableStep StartedRun::durable_step(RunProgress progress) const {
  progress.data = data_after_step();
  progress.router_corrections = engine.runner().router_corrections();
  if (ranks().first()) keep_corrections(directory.path(), progress);
  return {progress.step.value, commit_note(progress)};
}

void StartedRun::note_commit() {
  const std::optional<CommittedStep> made = engine.commits().take();
  if (!made) return;
  ledger.note_committed(Step(made->point.step));
  reporter.write(CommitRecord{.step = Step(made->point.step),
                              .version = static_cast<int64_t>(made->point.version),
                              .seconds = made->seconds});
}

void StartedRun::apply_updates() {
  engine.apply_updates();
  note_commit();
}

void StartedRun::check_frozen(bool passed) {
  start_check.check(ledger.progress.start, passed || !engine.plan().frozen_in_files);
}

}  // namespace longshore
