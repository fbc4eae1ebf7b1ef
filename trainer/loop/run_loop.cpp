#include "trainer/loop/run_loop.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <string>
#include <utility>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/texts.h"
#include "trainer/data/run_data.h"
#include "trainer/loop/lr_schedule.h"
#include "trainer/metrics/metrics.h"
#include "trainer/model/export_run.h"
#include "trainer/report/model_card.h"
#include "trainer/report/packing_report.h"
#include "trainer/run/drive_state.h"
#include "trainer/use/evaluator.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kHeapSeconds = 5.0;

// Throws if all steps were skipped, because the weights are still those that the run began with.
void check_applied(const RunProgress& progress) {
  if (progress.adam_step > 0 || progress.step.value == 0) return;
  throw NonFiniteError("none of the run's " + std::to_string(progress.step.value) +
                       " steps was applied: each had a loss or gradient that is not finite; the "
                       "weights are those it began with, and are not exported");
}

}  // namespace

int RunLoop::run() {
  const int64_t steps = run_.data.total_steps();
  if (run_.ranks().first() && step().value > 0 && step().value >= steps) {
    log_info("nothing left to do: step " + std::to_string(step().value) + " of " +
             std::to_string(steps) + " is done; raise train.steps or train.epochs to continue");
  }
  while (step().value < steps && !stopping_ && !out_of_patience()) after_step(run_step());
  run_.reporter.finish_display();
  return step().value < steps && !out_of_patience() ? stop() : finish();
}

StepOutcome RunLoop::run_step() {
  const Clock::time_point begin = Clock::now();
  Engine& engine = run_.engine;
  RunProgress& progress = run_.ledger.progress;
  progress.step.value += 1;
  const int64_t total_steps = run_.data.total_steps();
  const double lr = lr_at(config_.schedule, config_.optimizer.lr, progress.step, total_steps);
  StepBatches batches = run_.data.step_batches(progress.step, share());
  const Objective& objective = *run_.objective;
  std::vector<Batch>& own = batches.micro_batches;
  set_references(own, objective);
  if (run_.data.data().mismatched != nullptr) set_kl(own, kl_of_step());
  StepRequest request{.batches = engine.batches().load(own, objective.loss),
                      .loss_terms = loss_terms(batches, *objective.loss),
                      .lr = lr,
                      .max_grad_norm = config_.train.max_grad_norm,
                      .stop = run_.signals.stop_requested() || record_failed(),
                      .save = run_.signals.take_save_request(),
                      .record = {}};
  if (engine.commits().commits()) {
    request.record = [this](bool skipped) { return record_after(skipped); };
  }
  const bool first_pass = !std::exchange(passed_, true);
  if (first_pass) engine.memory().reset_peak();
  const StepTotals totals = forward_backward(engine, request);
  if (first_pass) {
    check_first_pass(run_.setup.inputs, engine.plan(), engine.memory().usage(), own);
    run_.check_frozen(/*passed=*/true);
  }
  run_.note_commit();
  const StepOutcome outcome = finish_step(engine, request, totals);
  run_.note_commit();
  progress.adam_step = engine.updates();
  progress.skipped_in_row = outcome.skipped ? progress.skipped_in_row + 1 : 0;
  progress.skipped_total += outcome.skipped ? 1 : 0;
  // The signal's handler has printed below the display, which would be redrawn at a wrong place.
  if (run_.signals.stop_requested() && !std::exchange(stop_seen_, true)) {
    run_.reporter.make_room_for(SignalFlag::announcement());
  }
  run_.reporter.add({.step = progress.step,
                     .lr = lr,
                     .tokens = batches.tokens,
                     .trained_tokens = batches.trained_tokens,
                     .sequences = batches.sequences,
                     .epoch = run_.data.epochs_after(progress.step),
                     .seconds = seconds_since(begin),
                     .figures = objective.loss->figures(outcome.sums),
                     .skipped_total = progress.skipped_total},
                    outcome, total_steps);
  count_skipped(outcome);
  note_zero_gradient(outcome);
  ++steps_run_;
  last_loss_ = outcome.loss;
  return outcome;
}

// Returns the kl that the rows of this step compare with. Its forward reads the weights of this
// step, so the update of the one before comes first.
double RunLoop::kl_of_step() {
  run_.apply_updates();
  return compute_kl(run_.engine, run_.data.mismatched_batches(step(), share()), *run_.objective,
                    [] {});
}

DurableStep RunLoop::record_after(bool skipped) const {
  RunProgress after = run_.ledger.progress;
  after.adam_step = run_.engine.updates() + (skipped ? 0 : 1);
  after.skipped_in_row = skipped ? after.skipped_in_row + 1 : 0;
  after.skipped_total += skipped ? 1 : 0;
  return run_.durable_step(after);
}

void RunLoop::count_skipped(const StepOutcome& outcome) {
  if (!outcome.skipped) return;
  const std::string first =
      outcome.norm.first_non_finite
          ? ", first in unit " + run_.setup.source->spec().unit(*outcome.norm.first_non_finite).name
          : "";
  const std::string text = "step " + std::to_string(step().value) +
                           " skipped: the loss or a gradient is not finite" + first;
  run_.reporter.clear_display();
  if (run_.ranks().first()) log_warning(text);
  run_.reporter.write(
      EventRecord{.level = "warning", .code = "step_skipped", .rank = 0, .text = text});
  const int64_t in_row = run_.ledger.progress.skipped_in_row;
  if (in_row >= config_.train.max_nonfinite_steps) {
    throw NonFiniteError("stopped after " + std::to_string(in_row) +
                         " steps in a row with a loss or gradient that is not finite" + first +
                         "; lower optimizer.lr or check the data (train.max_nonfinite_steps)");
  }
}

// Says once that nothing is learned, although nothing else looks wrong.
void RunLoop::note_zero_gradient(const StepOutcome& outcome) {
  if (outcome.skipped || outcome.norm.norm != 0.0 || outcome.loss == 0.0) return;
  if (std::exchange(zero_gradient_seen_, true)) return;
  const std::string text =
      "step " + std::to_string(step().value) +
      ": the gradient is exactly 0, so the model does not learn: its weights may be ruined (lower "
      "optimizer.lr and start again), or no trained parameter reaches the loss";
  run_.reporter.clear_display();
  if (run_.ranks().first()) log_warning(text);
  run_.reporter.write(
      EventRecord{.level = "warning", .code = "zero_gradient", .rank = 0, .text = text});
}

void RunLoop::after_step(const StepOutcome& outcome) {
  const bool last = step().value == run_.data.total_steps();
  const auto due = [this](int64_t every) { return every > 0 && step().value % every == 0; };
  // A single rank stops at once; several ranks agree on the failure in the next step's totals.
  const bool failed = record_failed();
  stopping_ = outcome.stop || (run_.ranks().info().size == 1 && failed);
  warn_of_events();
  run_.ledger.note_status(run_.reporter, run_.signals);
  trim_heap();
  // The last step stays on the terminal, above the messages about the run's end.
  if (last || stopping_) run_.reporter.finish_display();
  const bool evaluates = !run_.eval_sets.empty() && (last || due(config_.eval.every_steps));
  if (evaluates && !stopping_) evaluate_now();
  if (!saves_) return;
  if (last || out_of_patience() || outcome.save || due(config_.checkpoint.every_steps)) {
    save();
    if (!last && run_.ranks().first()) {
      log_info("checkpoint saved: " + run_.ledger.saved_path());
    }
  }
}

// Returns free heap memory to the system, which takes 25 ms. Experts have other rows in each step,
// so the sizes of LibTorch's temporaries vary and the heap fragments: by 140 MiB in 24 steps of a
// model with a 2 GiB plan. A fixed mmap threshold of 128 KiB also helps, but made steps a sixth
// slower.
void RunLoop::trim_heap() {
  if (seconds_since(heap_given_back_) < kHeapSeconds) return;
  ::malloc_trim(0);
  heap_given_back_ = Clock::now();
}

bool RunLoop::out_of_patience() const {
  return config_.eval.patience > 0 && run_.evaluations.without_gain() >= config_.eval.patience;
}

void RunLoop::evaluate_now() {
  // On a single rank a stop signal ends the evaluation, and the run saves the last step. Several
  // ranks finish the evaluation, because they could not stop at the same batch.
  run_.apply_updates();
  StepReporter& reporter = run_.reporter;
  const bool first = run_.ranks().first();
  const StopCheck stop =
      run_.ranks().info().size > 1 ? StopCheck([] {}) : stop_check_of(run_.signals);
  try {
    const Evaluations results = evaluate_sets(run_.engine, run_.eval_sets, config_.eval.sequences,
                                              config_.train.micro_batch.value(), stop);
    const Evaluation& result = results.whole;
    EvalRecord record = record_of(result);
    record.step = step();
    for (const auto& [name, set] : results.named) {
      record.sets[name + "/loss"] = set.loss;
      const auto accuracy = token_accuracy(set);
      if (accuracy) record.sets[name + "/token_accuracy"] = *accuracy;
    }
    const bool best = run_.evaluations.record(result.loss);
    reporter.write(record);
    // The last step stays on the terminal.
    if (out_of_patience()) reporter.finish_display();
    reporter.clear_display();
    const std::string text =
        formatted("step %lld  eval loss ", static_cast<long long>(step().value)) +
        format_loss(result.loss) + "  " + describe_quality(result) +
        (best ? "  the best so far" : "");
    if (first) log_info(text);
    for (const auto& [name, set] : results.named) {
      const std::string line =
          "  " + name + "  loss " + format_loss(set.loss) + "  " + describe_quality(set);
      if (first) log_info(line);
    }
    if (run_.prompts) show_samples();
    if (best && config_.eval.keep_best) write_checkpoint(run_.directory.file("best"), 1);
    if (out_of_patience() && first) {
      log_info("no lower loss in " + std::to_string(run_.evaluations.without_gain()) +
               " evaluations: the run ends here (eval.patience)");
    }
  } catch (const Stopped&) {
    stopping_ = true;
    reporter.clear_display();
    log_info("evaluation cut short by a stop signal");
  }
}

// Generates samples on all ranks, because each holds a part of the model.
void RunLoop::show_samples() {
  const SampleRequest& samples = run_.samples;
  Generator generator(&run_.engine, &run_.setup.source->model(), &run_.prompts->tokenizer());
  const std::vector<Answer> answers = generator.run(samples.settings, samples.prompts);
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::string between = run_.prompts->writes_messages() ? "\n  " : "";
    const std::string text = samples.prompts[i].text + between + answers[i].text;
    if (run_.ranks().first()) log_info("  " + text);
    run_.reporter.write(EventRecord{.level = "info", .code = "sample", .rank = 0, .text = text});
  }
}

SavedCheckpoint RunLoop::write_checkpoint(const std::string& folder, int64_t keep) {
  run_.apply_updates();
  RunProgress& progress = run_.ledger.progress;
  progress.data = run_.data_after_step();
  progress.router_corrections = run_.engine.runner().router_corrections();
  run_.reporter.sync();
  run_.reporter.clear_display();  // a long write shows its own progress line
  Engine& engine = run_.engine;
  const RankGroups& groups = engine.groups();
  try {
    return save_checkpoint(folder, keep, progress,
                           {engine.spec(), engine.layouts(), groups.shard()}, engine.state_sweep(),
                           run_.ranks().world(), groups);
  } catch (const IoError& error) {
    throw CheckpointError("the checkpoint of step " + std::to_string(progress.step.value) +
                          " could not be written: " + error.what() + "; " +
                          run_.ledger.what_is_saved());
  }
}

void RunLoop::save() {
  const SavedCheckpoint saved =
      write_checkpoint(run_.directory.checkpoints(), config_.checkpoint.keep);
  run_.ledger.note_saved(saved.path);
  run_.reporter.write(CheckpointRecord{
      .step = step(), .path = saved.path, .bytes = saved.bytes, .seconds = saved.seconds});
  run_.ledger.write_status(run_.reporter);
}

void RunLoop::save_unless_saved() {
  if (saves_ && !run_.ledger.is_saved()) save();
}

int RunLoop::stop() {
  try {
    save_unless_saved();
  } catch (const CheckpointError& error) {
    if (stop_cause_.empty()) throw;
    throw CheckpointError(stop_cause_ + "; then " + error.what());
  }
  run_.reporter.sync();
  record_failed();
  // One rank alone knows that its record could not be written or that its drives' file is gone, and
  // all ranks end for that reason.
  std::string cause;
  for (const std::string& one : run_.ranks().world().exchange("the reason to stop", stop_cause_)) {
    if (cause.empty()) cause = one;
  }
  if (!cause.empty()) {
    // No exception: the other ranks end for the same reason and need not be told.
    failure_ = cause + "; " + run_.ledger.what_is_saved();
    if (run_.ranks().first()) log_error(failure_);
    return static_cast<int>(ExitCode::kFailure);
  }
  if (run_.ranks().first()) {
    if (steps_run_ > 0) log_info(trained_text());
    if (saves_) {
      log_info("saved at step " + std::to_string(step().value) + " in " + run_.ledger.saved_path() +
               "; the same command resumes from here");
    }
  }
  // A rank that received no signal returns the exit code for SIGTERM.
  return run_.signals.stop_requested() ? run_.signals.stop_exit_code() : 128 + SIGTERM;
}

int RunLoop::finish() {
  // If a kill followed the last commit, the last step has no checkpoint yet.
  save_unless_saved();
  check_applied(run_.ledger.progress);
  if (!run_.ranks().first()) return 0;
  if (steps_run_ > 0) {
    log_info(trained_text() + (saves_ ? "; checkpoint: " + run_.ledger.saved_path() : ""));
  }
  if (config_.checkpoint.export_model != CheckpointSection::Export::kNever) {
    const std::string saved =
        "; " + run_.ledger.what_is_saved() + "; the same command exports it again";
    try {
      export_model();
    } catch (const IoError& error) {
      throw IoError("the export failed: " + std::string(error.what()) + saved);
    } catch (const DataError& error) {
      throw DataError("the export failed: " + std::string(error.what()) + saved);
    } catch (const CheckpointError& error) {
      throw CheckpointError("the export failed: " + std::string(error.what()) + saved);
    }
  }
  run_.reporter.write(EndRecord{.status = "done", .exit_code = 0, .steps = step().value});
  check_metrics();
  return 0;
}

std::string RunLoop::trained_text() const {
  return formatted("trained %lld steps in %s; the last loss is ",
                   static_cast<long long>(steps_run_),
                   format_duration(seconds_since(begun_)).c_str()) +
         format_loss(last_loss_);
}

// Exports the last step's checkpoint, which holds all ranks' parts, without communication.
void RunLoop::export_model() {
  const ModelSource& source = *run_.setup.source;
  const Checkpoint last = Checkpoint::open(run_.ledger.saved_path());
  const ExportChoice choice{
      .merged = config_.checkpoint.export_model == CheckpointSection::Export::kMerged,
      .published = asks_for_published(config_)};
  const ExportTexts texts = texts_of_checkpoint(
      source, config_, last.path(), last.manifest().progress.step, exports_adapter(source, choice));
  const std::string destination =
      free_export_directory(source, run_.directory.export_directory(), choice, texts);
  const ExportResult result = export_checkpoint(source, last, destination, choice, texts);
  exported_ = destination;
  run_.reporter.clear_display();
  log_info("exported " + std::to_string(result.tensors) + " tensors, " +
           format_bytes(result.bytes) + ", to " + destination);
  const std::string run = shell_quoted(config_.run.dir);
  log_packing(result, source.has_adapter(), run);
  log_info(next_commands(destination, source, choice, run));
}

// A record that cannot be written stops the run. The first failure counts, because a later write
// may succeed before all ranks have agreed to stop. A file on drives that lost its name also stops
// the run: later commits to it would be lost when the process ends.
bool RunLoop::record_failed() {
  if (stop_cause_.empty()) stop_cause_ = run_.reporter.failure();
  const std::string lost = stop_cause_.empty() ? run_.engine.commits().lost_file() : "";
  if (!lost.empty()) {
    stop_cause_ = lost +
                  ": was moved, removed or replaced under the run, so that steps committed "
                  "to it would be lost";
  }
  return !stop_cause_.empty();
}

// TensorBoard's copy of the record does not stop a run; the user learns of its failure once.
void RunLoop::warn_of_events() {
  const std::string failure = run_.reporter.events_failure();
  if (failure.empty() || std::exchange(events_warned_, true)) return;
  run_.reporter.clear_display();
  log_warning("log.tensorboard: " + failure +
              "; the run goes on, metrics.jsonl has all values, and later steps try again");
}

// Throws, after everything is saved, if lines of the metrics or TensorBoard's copy of them could
// not be written.
void RunLoop::check_metrics() {
  run_.reporter.sync();
  const std::string failure = run_.reporter.failure(), events = run_.reporter.events_failure();
  const std::string& first = failure.empty() ? events : failure;
  if (!first.empty()) throw IoError(first + "; " + run_.ledger.what_is_saved());
}

void check_first_pass(const PlanInputs& inputs, const TierPlan& plan,
                      const DeviceMemory::Usage& usage, std::span<const Batch> batches) {
  if (plan.device.workspace_source == CostSource::kMeasured || batches.empty()) return;
  int64_t positions = 1, longest = 1;
  for (const Batch& batch : batches) {
    positions = std::max(positions, batch.token_count());
    for (size_t i = 1; i < batch.document_starts.size(); ++i) {
      longest = std::max(longest, batch.document_starts[i] - batch.document_starts[i - 1]);
    }
  }
  const Workspace expected =
      workspace_of(*inputs.model, inputs.costs(positions, longest), plan.step.kept_graphs);
  const auto allowed = static_cast<double>(expected.worst + expected.saved * std::ssize(batches));
  const auto taken = static_cast<double>(usage.workspace.tensors_peak);
  if (taken <= allowed) return;
  const auto full = static_cast<Bytes>(
      std::ceil(static_cast<double>(plan.device.workspace) * (taken / std::max(1.0, allowed))));
  const std::string what = "the first pass took " + format_bytes(usage.workspace.tensors_peak) +
                           " of temporaries for " + std::to_string(positions) +
                           " positions, the plan says " +
                           format_bytes(static_cast<Bytes>(allowed)) + " (" +
                           std::string(name_of(plan.device.workspace_source)) + ")";
  if (plan.device.owned + full <= plan.device.limit) {
    log_warning(what + "; it still fits");
    return;
  }
  throw OutOfMemoryError(what + ": full micro-batches of " + std::to_string(plan.step.positions) +
                         " positions will take " + format_bytes(plan.device.owned + full) +
                         " of the device's " + format_bytes(plan.device.limit) +
                         "; nothing was updated; raise offload.device_memory or lower "
                         "train.micro_batch or data.max_tokens");
}

}  // namespace longshore
