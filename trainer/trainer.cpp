#include "trainer/trainer.h"

#include <malloc.h>

#include <chrono>
#include <csignal>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "offload/plan/plan_from_config.h"
#include "trainer/data/rank_share.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/run_environment.h"
#include "trainer/evaluator.h"
#include "trainer/generator.h"
#include "trainer/lr_schedule.h"
#include "trainer/model/export_run.h"
#include "trainer/report/checkpoint_card.h"
#include "trainer/run/first_pass.h"
#include "trainer/run/run_saver.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kStatusSeconds = 1.0;
constexpr double kHeapSeconds = 5.0;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

StopCheck stop_check_of(const SignalFlag& signals) {
  return [&signals] {
    if (signals.stop_requested()) throw Stopped(signals.stop_exit_code());
  };
}

// Preparing data may be cut off at any moment.
SequenceData load_until_stopped(const MeasuredRun& setup, SequenceUse use,
                                const SignalFlag& signals) {
  const HurriedStop hurried(signals);
  return load_sequences(setup.config, *setup.source, use, stop_check_of(signals));
}

}  // namespace

Trainer::Trainer(const MeasuredRun& setup, const TierPlan& plan, const RunDirectory& directory,
                 SignalFlag& signals, const std::function<void(Step)>& begin, TraceFile* trace)
    : config_(setup.config),
      plan_inputs_(setup.inputs),
      source_(*setup.source),
      ranks_(*setup.ranks),
      directory_(directory),
      signals_(signals),
      data_(setup.config, load_until_stopped(setup, SequenceUse::kTrain, signals)),
      eval_data_(has_evaluation_data(config_)
                     ? std::optional(load_until_stopped(setup, SequenceUse::kEvaluate, signals))
                     : std::nullopt),
      engine_(&setup.source->model(), plan, adamw_options(setup.config), setup.ranks->groups(),
              check_run(setup, plan)),
      reporter_(&engine_, ranks_.first(),
                LiveLine::options_of_stderr(setup.config.log.every_steps)) {
  if (trace != nullptr) {
    engine_.set_observer(
        [this, trace](const StepSchedule& schedule, std::span<const OpTime> times) {
          trace->add(schedule, times, source_.spec(), progress_.step);
        });
  }
  load_or_resume(begin);
  reporter_.begin_steps();
}

RunKey Trainer::check_run(const MeasuredRun& setup, const TierPlan& plan) {
  progress_.seed = static_cast<uint64_t>(config_.run.seed);
  progress_.model_fingerprint = source_.directory().fingerprint();
  progress_.config_text = to_toml(config_);
  agree_with_ranks(plan);
  const SequenceData& trained = data_.data();
  for (const std::string& note : end_notes(trained.ends, trained.conversations, source_)) {
    if (ranks_.first()) log_warning(note);
  }
  if (eval_data_ && !config_.eval.prompts.empty()) {
    tokenizer_ = Tokenizer::load(tokenizer_directory(config_, source_.directory().path()));
    check_prompts(plan.step.positions);
  }
  refuse_other_run();
  return plan.drives.tier.state ? settle_drive_state(setup, plan, directory_.path()) : RunKey{};
}

// A prompt that does not fit would end the run only at the first evaluation.
void Trainer::check_prompts(int64_t planned_positions) const {
  int64_t positions = 0;
  for (const std::string& prompt : config_.eval.prompts) {
    const auto tokens = tokenizer_->encode(prompt, SpecialTokens::kAdd).size();
    if (tokens == 0) throw ConfigError("eval.prompts: \"" + prompt + "\" has no tokens");
    positions += static_cast<int64_t>(tokens) + config_.eval.max_new_tokens;
  }
  if (positions <= planned_positions) return;
  throw ConfigError("eval.prompts and eval.max_new_tokens need " + std::to_string(positions) +
                    " positions, the plan has " + std::to_string(planned_positions) +
                    "; use fewer or shorter ones, or raise data.max_tokens");
}

void Trainer::agree_with_ranks(const TierPlan& plan) const {
  // Plans of ranks whose machines differ may differ: a GPU that is smaller keeps fewer units.
  ranks_.world().agree("the order of collectives", describe_collectives(plan.step.schedules));
  ranks_.world().agree("the training data", hash_text(data_.fingerprint()) + "\n");
  if (!eval_data_) return;
  ranks_.world().agree("the evaluation data", hash_text(eval_data_->dataset->fingerprint()) + "\n");
}

StopCheck Trainer::stop_check() const {
  return stop_check_of(signals_);
}

int Trainer::run() {
  if (ranks_.first() && progress_.step.value > 0 && progress_.step.value >= data_.total_steps()) {
    log_info("nothing left to do: step " + std::to_string(progress_.step.value) + " of " +
             std::to_string(data_.total_steps()) +
             " is done; raise train.steps or train.epochs to continue");
  }
  while (progress_.step.value < data_.total_steps() && !stopping_ && !out_of_patience()) {
    const StepOutcome outcome = run_step();
    after_step(outcome);
  }
  reporter_.finish_display();
  if (progress_.step.value < data_.total_steps() && !out_of_patience()) return stop();
  return finish();
}

int Trainer::stop() {
  if (saved_step_ != progress_.step) save();
  if (ranks_.first()) {
    log_info("saved at step " + std::to_string(progress_.step.value) + " in " + saved_path_ +
             "; the same command resumes from here");
  }
  check_metrics();
  // A rank that got no signal itself stops as SIGTERM would have stopped it.
  return signals_.stop_requested() ? signals_.stop_exit_code() : 128 + SIGTERM;
}

// After everything is saved: a record with a hole is no success.
void Trainer::check_metrics() {
  reporter_.sync();
  if (!record_failed()) return;
  throw IoError(reporter_.failure() + "; " + what_is_saved());
}

std::string Trainer::what_is_saved() const {
  std::string text = saved_step_ ? "the run is saved after step " +
                                       std::to_string(saved_step_->value) + " in " + saved_path_
                                 : "no checkpoint of it is saved by this process";
  if (committed_) {
    text += "; the drives hold it after step " + std::to_string(committed_->value);
  }
  return text;
}

RunStatus Trainer::status() const {
  return {.state = RunStatus::State::kRunning,
          .exit_code = std::nullopt,
          .step = progress_.step,
          .saved_step = saved_step_,
          .committed_step = committed_,
          .message = ""};
}

// What a script, or the next start after a kill, reads of a run that goes on: about every second.
void Trainer::note_status() {
  if (!ranks_.first()) return;
  RunStatus interrupted = status();
  interrupted.state = RunStatus::State::kStopped;
  interrupted.exit_code = static_cast<int>(ExitCode::kInterrupted);
  interrupted.message = "interrupted twice; nothing was saved after saved_step";
  signals_.set_last_words(directory_.file("run.json"), RunDirectory::status_text(interrupted));
  if (seconds_since(status_noted_) < kStatusSeconds) return;
  status_noted_ = Clock::now();
  try {
    directory_.note_status(status());
  } catch (const IoError& error) {
    reporter_.clear_display();
    log_warning(error.what());  // of no weight against the run
  }
}

// Experts have other rows in every step, so LibTorch's temporaries are of another size each time,
// and the heap frays: by 140 MiB in 24 steps of a model whose plan is 2 GiB. What is free goes back
// to the system between steps, which takes 25 ms. (The heap's own way, a threshold of 128 KiB for
// mappings, does the same and made steps a sixth slower.)
void Trainer::give_back_heap() {
  if (seconds_since(heap_given_back_) < kHeapSeconds) return;
  ::malloc_trim(0);
  heap_given_back_ = Clock::now();
}

StepOutcome Trainer::run_step() {
  const Clock::time_point begin = Clock::now();
  progress_.step.value += 1;
  const double lr =
      lr_at(config_.schedule, config_.optimizer.lr, progress_.step, data_.total_steps());
  const StepBatches batches = data_.step_batches(progress_.step);
  const std::vector<HostBatch> own =
      share_of(host_batches(batches.micro_batches), ranks_.rank(), ranks_.info().size);
  StepRequest request{.batches = engine_.batches().load(own),
                      .trained_tokens = batches.trained_tokens,
                      .lr = lr,
                      .max_grad_norm = config_.train.max_grad_norm,
                      .stop = signals_.stop_requested() || record_failed(),
                      .save = signals_.take_save_request(),
                      .record = {}};
  if (engine_.commits().commits()) {
    request.record = [this](bool skipped) { return record_after(skipped); };
  }
  const bool first_pass = !std::exchange(passed_, true);
  if (first_pass) engine_.memory().reset_peak();
  const StepTotals totals = forward_backward(engine_, request);
  if (first_pass) check_first_pass(plan_inputs_, engine_.plan(), engine_.memory().usage(), own);
  note_commit();
  const StepOutcome outcome = settle_step(engine_, request, totals);
  note_commit();
  progress_.adam_step = engine_.updates();
  progress_.skipped_in_row = outcome.skipped ? progress_.skipped_in_row + 1 : 0;
  progress_.skipped_total += outcome.skipped ? 1 : 0;
  reporter_.add({.step = progress_.step,
                 .total_steps = data_.total_steps(),
                 .tokens = batches.tokens,
                 .trained_tokens = batches.trained_tokens,
                 .sequences = batches.sequences,
                 .epoch = data_.epochs_after(progress_.step),
                 .lr = lr,
                 .seconds = seconds_since(begin),
                 .skipped_total = progress_.skipped_total},
                outcome);
  count_skipped(outcome);
  return outcome;
}

void Trainer::count_skipped(const StepOutcome& outcome) {
  if (!outcome.skipped) return;
  const std::string first =
      outcome.norm.first_non_finite
          ? ", first in unit " + source_.spec().unit(*outcome.norm.first_non_finite).name
          : "";
  const std::string text = "step " + std::to_string(progress_.step.value) +
                           " skipped: the loss or a gradient is not finite" + first;
  reporter_.clear_display();
  if (ranks_.first()) log_warning(text);
  reporter_.write(EventRecord{.level = "warning", .code = "step_skipped", .rank = 0, .text = text});
  if (progress_.skipped_in_row >= config_.train.max_nonfinite_steps) {
    throw NonFiniteError("stopped after " + std::to_string(progress_.skipped_in_row) +
                         " steps in a row with a loss or gradient that is not finite" + first +
                         "; lower optimizer.lr or check the data (train.max_nonfinite_steps)");
  }
}

void Trainer::after_step(const StepOutcome& outcome) {
  const int64_t step = progress_.step.value;
  const bool last = step == data_.total_steps();
  // Alone nobody has to be asked; several ranks learn it with the next step's totals.
  stopping_ = outcome.stop || (ranks_.info().size == 1 && record_failed());
  note_status();
  give_back_heap();
  if (eval_data_ && !stopping_ &&
      (last || (config_.eval.every_steps > 0 && step % config_.eval.every_steps == 0))) {
    evaluate_now();
  }
  const int64_t every = config_.checkpoint.every_steps;
  const bool ends = last || out_of_patience();
  if (ends || outcome.save || (every > 0 && step % every == 0)) save();
}

bool Trainer::out_of_patience() const {
  return config_.eval.patience > 0 && evaluations_.without_gain() >= config_.eval.patience;
}

void Trainer::evaluate_now() {
  // A stop signal during the evaluation ends it; the step before it is saved as always. Several
  // ranks finish it: they could not leave it together.
  apply_updates();
  const StopCheck stop = ranks_.info().size > 1 ? StopCheck([] {}) : stop_check();
  try {
    const Evaluation result =
        evaluate(engine_, *eval_data_, config_.eval.sequences, config_.train.micro_batch, stop);
    const bool best = evaluations_.record(result.loss);
    reporter_.write(EvalRecord{.step = progress_.step,
                               .loss = result.loss,
                               .perplexity = result.perplexity,
                               .tokens = result.tokens,
                               .seconds = result.seconds});
    reporter_.clear_display();
    char text[128];
    std::snprintf(text, sizeof text, "step %lld  eval loss %.4f  perplexity %.2f%s",
                  static_cast<long long>(progress_.step.value), result.loss, result.perplexity,
                  best ? "  the best so far" : "");
    if (ranks_.first()) log_info(text);
    if (tokenizer_) show_samples();
    if (best && config_.eval.keep_best) write_checkpoint(directory_.file("best"), 1);
    if (out_of_patience() && ranks_.first()) {
      log_info("no lower loss in " + std::to_string(evaluations_.without_gain()) +
               " evaluations: the run ends here (eval.patience)");
    }
  } catch (const Stopped&) {
    stopping_ = true;
    reporter_.clear_display();
    log_info("evaluation cut short by a stop signal");
  }
}

// All ranks generate: each holds a part of the model.
void Trainer::show_samples() {
  const std::vector<Generated> samples =
      generate(engine_, *tokenizer_,
               {.prompts = config_.eval.prompts,
                .max_new_tokens = config_.eval.max_new_tokens,
                .longest = config_.data.max_tokens,
                .sampling = {.seed = static_cast<uint64_t>(config_.run.seed)}});
  for (const Generated& sample : samples) {
    if (ranks_.first()) log_info("  " + sample.prompt + sample.text);
    reporter_.write(EventRecord{
        .level = "info", .code = "sample", .rank = 0, .text = sample.prompt + sample.text});
  }
}

void Trainer::note_data() {
  progress_.data = data_after_step();
}

DataState Trainer::data_after_step() const {
  return {.cursor = data_.cursor_after(progress_.step),
          .sequences = data_.sequence_count(),
          .fingerprint = data_.fingerprint()};
}

DurableStep Trainer::record_after(bool skipped) const {
  RunProgress after = progress_;
  after.adam_step = engine_.updates() + (skipped ? 0 : 1);
  after.skipped_in_row = skipped ? progress_.skipped_in_row + 1 : 0;
  after.skipped_total += skipped ? 1 : 0;
  after.data = data_after_step();
  return {after.step.value, commit_note(after)};
}

void Trainer::note_commit() {
  const std::optional<CommittedStep> made = engine_.commits().take();
  if (!made) return;
  note_committed_step(Step(made->point.step));
  reporter_.write(CommitRecord{.step = Step(made->point.step),
                               .version = static_cast<int64_t>(made->point.version),
                               .seconds = made->seconds});
}

void Trainer::note_committed_step(Step step) {
  const bool first_of_all = step.value > 0 && (!committed_ || committed_->value == 0);
  if (first_of_all && ranks_.first()) note_committed(directory_.path(), true);
  committed_ = step;
}

void Trainer::apply_updates() {
  engine_.apply_updates();
  note_commit();
}

SavedCheckpoint Trainer::write_checkpoint(const std::string& folder, int64_t keep) {
  apply_updates();
  note_data();
  reporter_.sync();
  reporter_.clear_display();  // long writing has a line of its own
  const RankGroups& groups = engine_.groups();
  try {
    return save_checkpoint(folder, keep, progress_,
                           {source_.spec(), engine_.layouts(), groups.shard()},
                           engine_.state_sweep(), ranks_.world(), groups);
  } catch (const IoError& error) {
    throw CheckpointError("the checkpoint of step " + std::to_string(progress_.step.value) +
                          " could not be written: " + error.what() + "; " + what_is_saved());
  }
}

void Trainer::save() {
  const SavedCheckpoint saved = write_checkpoint(directory_.checkpoints(), config_.checkpoint.keep);
  saved_step_ = progress_.step;
  saved_path_ = saved.path;
  if (!ranks_.first()) return;
  reporter_.write(CheckpointRecord{
      .step = progress_.step, .path = saved.path, .bytes = saved.bytes, .seconds = saved.seconds});
  try {
    directory_.write_status(status());
  } catch (const IoError& error) {
    reporter_.clear_display();
    log_warning(error.what());
  }
}

// A step's state was never changed: the weights are those the run began with.
void Trainer::check_applied() const {
  if (progress_.adam_step > 0 || progress_.step.value == 0) return;
  throw NonFiniteError("none of the run's " + std::to_string(progress_.step.value) +
                       " steps was applied: each had a loss or gradient that is not finite; the "
                       "weights are those it began with, and are not exported");
}

int Trainer::finish() {
  // A run that was killed after its last commit has no checkpoint of that step yet.
  if (saved_step_ != progress_.step) save();
  check_applied();
  if (!ranks_.first()) return 0;
  if (config_.checkpoint.export_model == CheckpointSection::Export::kEnd) {
    // The last step's checkpoint holds every rank's part; nobody has to be asked.
    const Checkpoint last = Checkpoint::open(saved_path_);
    const ExportTexts texts =
        texts_of_checkpoint(source_, config_, last.path(), last.manifest().progress.step);
    const std::string destination =
        free_export_directory(source_, directory_.export_directory(), texts);
    const ExportResult result = export_checkpoint(source_, last, destination, texts);
    reporter_.clear_display();
    log_info("exported " + std::to_string(result.tensors) + " tensors, " +
             format_bytes(result.bytes) + ", to " + destination);
    log_info(next_commands(destination));
  }
  reporter_.write(EndRecord{.status = "done", .exit_code = 0, .steps = progress_.step.value});
  check_metrics();
  return 0;
}

}  // namespace longshore
