#include "trainer/trainer.h"

#include <chrono>
#include <csignal>
#include <random>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "offload/plan/plan_inputs.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_moments.h"
#include "trainer/evaluator.h"
#include "trainer/generator.h"
#include "trainer/lr_schedule.h"
#include "trainer/run/export_run.h"
#include "trainer/run/first_pass.h"
#include "trainer/run/hurried_stop.h"
#include "trainer/run/rank_share.h"
#include "trainer/run/resume_point.h"
#include "trainer/run/run_environment.h"
#include "trainer/run/run_prepare.h"
#include "trainer/run/run_saver.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Known only now where the run's length is given in epochs.
void check_schedule(const ScheduleSection& schedule, int64_t total_steps) {
  if (schedule.warmup_steps + schedule.decay_steps <= total_steps) return;
  throw ConfigError("schedule.warmup_steps + schedule.decay_steps = " +
                    std::to_string(schedule.warmup_steps + schedule.decay_steps) +
                    " is more than the run's " + std::to_string(total_steps) +
                    " steps; lower them or raise train.epochs");
}

StopCheck stop_check_of(const SignalFlag& signals) {
  return [&signals] {
    if (signals.stop_requested()) throw Stopped(signals.stop_exit_code());
  };
}

// Preparing data may be cut off at any moment.
SequenceData load_until_stopped(const RunConfig& config, const ModelSource& source, SequenceUse use,
                                const SignalFlag& signals) {
  const HurriedStop hurried(signals);
  return load_sequences(config, source, use, stop_check_of(signals));
}

}  // namespace

Trainer::Trainer(const RunSetup& setup, const TierPlan& plan, const RunDirectory& directory,
                 SignalFlag& signals, TraceFile* trace)
    : config_(setup.config),
      plan_inputs_(setup.inputs),
      source_(*setup.source),
      ranks_(*setup.ranks),
      directory_(directory),
      signals_(signals),
      data_(setup.config,
            load_until_stopped(setup.config, *setup.source, SequenceUse::kTrain, signals)),
      engine_(&setup.source->model(), plan, adamw_options(setup.config), setup.ranks->groups(),
              plan.nvme.state ? settle_drive_state(setup, plan, directory.path()) : RunKey{}),
      agreement_(setup.ranks->groups().all),
      live_line_(LiveLine::options_of_stderr(setup.config.log.every_steps)) {
  if (trace != nullptr) {
    engine_.set_observer(
        [this, trace](const StepSchedule& schedule, std::span<const OpTime> times) {
          trace->add(schedule, times, source_.spec(), progress_.step);
        });
  }
  check_schedule(config_.schedule, data_.total_steps());
  if (has_evaluation_data(config_)) {
    eval_data_ = load_until_stopped(config_, source_, SequenceUse::kEvaluate, signals_);
  }
  agree_on_data();
  if (eval_data_ && !config_.eval.prompts.empty()) {
    tokenizer_ = Tokenizer::load(tokenizer_directory(config_, source_.directory().path()));
    check_prompts();
  }
  load_or_resume();
  // What setting up moved is no step's.
  payload_before_ = engine_.payload();
}

// A prompt that does not fit would end the run only at the first evaluation.
void Trainer::check_prompts() const {
  int64_t positions = 0;
  for (const std::string& prompt : config_.eval.prompts) {
    const auto tokens = tokenizer_->encode(prompt, SpecialTokens::kAdd).size();
    if (tokens == 0) throw ConfigError("eval.prompts: \"" + prompt + "\" has no tokens");
    positions += static_cast<int64_t>(tokens) + config_.eval.max_new_tokens;
  }
  if (positions <= engine_.plan().positions) return;
  throw ConfigError("eval.prompts and eval.max_new_tokens need " + std::to_string(positions) +
                    " positions, the plan has " + std::to_string(engine_.plan().positions) +
                    "; use fewer or shorter ones, or raise data.max_tokens");
}

void Trainer::agree_on_data() const {
  ranks_.world().agree("the training data", hash_text(data_.fingerprint()) + "\n");
  if (!eval_data_) return;
  ranks_.world().agree("the evaluation data", hash_text(eval_data_->dataset->fingerprint()) + "\n");
}

StopCheck Trainer::stop_check() const {
  return stop_check_of(signals_);
}

void Trainer::load_or_resume() {
  progress_.seed = static_cast<uint64_t>(config_.run.seed);
  progress_.model_fingerprint = source_.directory().fingerprint();
  progress_.config_text = to_toml(config_);
  if (!resume_from_drives()) {
    engine_.load([this](const std::string& name, int64_t begin, std::span<float> out) {
      source_.read_initial(name, begin, out);
    });
    resume(config_.checkpoint.resume);
    stage_commit();
    commit();
  }
  if (ranks_.first()) {
    metrics_ = progress_.step.value == 0
                   ? MetricsFile::begin(directory_.metrics_file())
                   : MetricsFile::resume(directory_.metrics_file(), progress_.step);
  }
  const std::string evaluated =
      metrics_ ? EvalTracker::of_metrics(directory_.metrics_file()).text() : "";
  evaluations_ =
      EvalTracker::of_text(ranks_.world().exchange("the best evaluation", evaluated).front());
  const TierPlan& plan = engine_.plan();
  write(StartRecord{.plan = "device " + format_bytes(plan.device_total) + ", host " +
                            format_bytes(plan.host_total),
                    .config_hash = hash_text(hash64(progress_.config_text)),
                    .ranks = ranks_.info().size,
                    .resumed_from = progress_.step});
}

void Trainer::resume(const std::string& resume) {
  FoundCheckpoint found = start_from_checkpoint(directory_.checkpoints(), resume, ranks_.world());
  for (const std::string& refused : found.refused) {
    log_warning("refused " + refused + "; an older checkpoint is used");
  }
  for (const std::string& path : found.set_aside) {
    log_warning("an earlier course of this run is now in " + path);
  }
  if (!found.checkpoint) return;
  const std::string& path = found.checkpoint->path();
  const std::string rounding =
      describe_rounding(found.checkpoint->manifest(), engine_.plan().state.format);
  if (!rounding.empty()) log_warning(path + ": " + rounding);
  continue_from(found.checkpoint->manifest().progress, path);
  found.checkpoint->restore({source_.spec(), engine_.layouts(), engine_.groups().shard()},
                            engine_.store());
  engine_.advance_version();
  saved_step_ = progress_.step;
  saved_path_ = path;
}

bool Trainer::resume_from_drives() {
  NvmeStore* drives = engine_.drives();
  if (drives == nullptr) return false;
  std::random_device random;
  const std::optional<CommitPoint>& point =
      drives->start(agreement_, (uint64_t{random()} << 32) | random());
  if (!point) return false;
  if (ranks_.first()) {
    clean_leftovers(directory_.checkpoints());
    set_aside_newer(directory_.checkpoints(), Step(point->step));
  }
  continue_from(read_commit_note(point->note, Step(point->step)), "the state on the drives");
  engine_.advance_version();
  return true;
}

void Trainer::continue_from(const RunProgress& saved, const std::string& path) {
  if (saved.model_fingerprint != progress_.model_fingerprint) {
    throw CheckpointError(path + ": was made from another model than " +
                          source_.directory().path() + "; give its model.path, or another run.dir");
  }
  const DataCursor cursor = read_cursor(saved.sampler, path);
  engine_.set_updates(saved.adam_step);
  data_.resume_at(saved.step, cursor);
  progress_.step = saved.step;
  progress_.adam_step = saved.adam_step;
  progress_.skipped_total = saved.skipped_total;
  progress_.skipped_in_row = saved.skipped_in_row;
  if (saved.step.value == 0) return;
  log_info("resumed from " + path + " after step " + std::to_string(saved.step.value));
}

DataCursor Trainer::read_cursor(const Json& sampler, const std::string& path) const {
  DataCursor cursor;
  std::string data;
  try {
    cursor.seed = sampler.at("seed").get<uint64_t>();
    cursor.epoch = sampler.at("epoch").get<int64_t>();
    cursor.position = sampler.at("position").get<int64_t>();
    data = sampler.at("data").get<std::string>();
  } catch (const Json::exception& error) {
    throw CheckpointError(path + ": manifest.json: sampler: " + error.what());
  }
  if (data != hash_text(data_.fingerprint()) || cursor.seed != progress_.seed) {
    throw CheckpointError(path +
                          ": the training data, its tokens or run.seed changed since; "
                          "bring them back, or start anew with checkpoint.resume = \"never\"");
  }
  return cursor;
}

int Trainer::run() {
  if (ranks_.first() && progress_.step.value > 0 && progress_.step.value >= data_.total_steps()) {
    log_info("nothing left to do: step " + std::to_string(progress_.step.value) + " of " +
             std::to_string(data_.total_steps()) +
             " is done; more train.steps or train.epochs go on from here");
  }
  while (progress_.step.value < data_.total_steps() && !stopping_ && !out_of_patience()) {
    const StepOutcome outcome = run_step();
    after_step(outcome);
  }
  live_line_.finish();
  if (progress_.step.value < data_.total_steps() && !out_of_patience()) {
    if (saved_step_ != progress_.step) save();
    // A rank that got no signal itself stops as SIGTERM would have stopped it.
    return signals_.stop_requested() ? signals_.stop_exit_code() : 128 + SIGTERM;
  }
  return finish();
}

StepOutcome Trainer::run_step() {
  const Clock::time_point begin = Clock::now();
  progress_.step.value += 1;
  const double lr =
      lr_at(config_.schedule, config_.optimizer.lr, progress_.step, data_.total_steps());
  const StepBatches batches = data_.step_batches(progress_.step);
  const std::vector<HostBatch> own =
      share_of(host_batches(batches.micro_batches), ranks_.rank(), ranks_.info().size);
  const StepRequest request{.batches = engine_.batches().load(own),
                            .trained_tokens = batches.trained_tokens,
                            .lr = lr,
                            .max_grad_norm = config_.train.max_grad_norm,
                            .stop = signals_.stop_requested(),
                            .save = signals_.take_save_request()};
  const bool first_pass = !std::exchange(passed_, true);
  if (first_pass) engine_.memory().reset_peak();
  const StepTotals totals = forward_backward(engine_, request);
  if (first_pass) check_first_pass(plan_inputs_, engine_.plan(), engine_.memory().usage(), own);
  // The pass wrote the last update of the step before: its version is whole, and has to be durable
  // before the next update overwrites the one before it.
  commit();
  const StepOutcome outcome = settle_step(engine_, request, totals);
  progress_.adam_step = engine_.updates();
  progress_.skipped_in_row = outcome.skipped ? progress_.skipped_in_row + 1 : 0;
  progress_.skipped_total += outcome.skipped ? 1 : 0;
  stage_commit();
  if (engine_.plan().overlap != UpdateOverlap::kForward) commit();
  record_step(batches, outcome, lr, seconds_since(begin));
  count_skipped(outcome);
  return outcome;
}

void Trainer::record_step(const StepBatches& batches, const StepOutcome& outcome, double lr,
                          double seconds) {
  const TierPlan& plan = engine_.plan();
  StepRecord record;
  record.step = progress_.step;
  record.loss = outcome.loss;
  record.grad_norm = outcome.norm.norm;
  record.clip_scale = outcome.clip_scale;
  record.lr = lr;
  record.tokens = batches.tokens;
  record.trained_tokens = batches.trained_tokens;
  record.sequences = batches.sequences;
  record.epoch = data_.epochs_after(progress_.step);
  record.seconds = seconds;
  record.tokens_per_second = static_cast<double>(batches.tokens) / seconds;
  const CopyEngine::Counts copied = engine_.copies().counts();
  record.bytes = {{"h2d", copied.to_device - copied_before_.to_device},
                  {"d2h", copied.to_host - copied_before_.to_host},
                  {"update", engine_.take_update_bytes()}};
  const LaneLedger ledger = engine_.take_ledger();
  for (Lane lane : {Lane::kUpdate, Lane::kH2D, Lane::kGather, Lane::kReduce, Lane::kD2H}) {
    record.stall_seconds.emplace_back(name_of(lane), ledger.of(lane).stall_seconds);
  }
  copied_before_ = copied;
  const PayloadCounters::Totals payload = engine_.payload();
  for (CommKind kind : {CommKind::kAllGather, CommKind::kReduceScatter, CommKind::kAllReduce}) {
    record.bytes.emplace_back(name_of(kind),
                              payload.of(kind).payload - payload_before_.of(kind).payload);
  }
  payload_before_ = payload;
  record.times = outcome.times;
  record.memory = {.device_peak = engine_.memory().usage().peak(),
                   .device_plan = plan.device_total,
                   .host_pinned = engine_.store().host_bytes(),
                   .host_rss = resident_bytes()};
  record.skipped = outcome.skipped;
  record.skipped_total = progress_.skipped_total;
  write(record);
  seconds_per_step_ = seconds_per_step_ == 0.0 ? seconds : 0.9 * seconds_per_step_ + 0.1 * seconds;
  if (ranks_.first()) show_step(record, outcome);
}

void Trainer::show_step(const StepRecord& record, const StepOutcome& outcome) {
  LiveStatus status;
  status.step = progress_.step.value;
  status.total_steps = data_.total_steps();
  status.loss = outcome.loss;
  status.lr = record.lr;
  status.grad_norm = outcome.norm.norm;
  status.tokens_per_second = record.tokens_per_second;
  status.skipped = outcome.skipped;
  if (outcome.times.size() > 1) {
    const SlowestRank slowest = slowest_of(outcome.times);
    status.wall =
        "rank " + std::to_string(slowest.rank.value) + " " + std::string(slowest.resource);
  }
  status.device_bytes = record.memory.device_peak;
  status.device_plan_bytes = record.memory.device_plan;
  status.host_bytes = record.memory.host_rss;
  status.host_plan_bytes = engine_.plan().host_total;
  status.eta_seconds =
      seconds_per_step_ * static_cast<double>(data_.total_steps() - progress_.step.value);
  live_line_.show(status);
}

void Trainer::count_skipped(const StepOutcome& outcome) {
  if (!outcome.skipped) return;
  const std::string first =
      outcome.norm.first_non_finite
          ? ", first in unit " + source_.spec().unit(*outcome.norm.first_non_finite).name
          : "";
  const std::string text = "step " + std::to_string(progress_.step.value) +
                           " skipped: the loss or a gradient is not finite" + first;
  live_line_.clear();
  if (ranks_.first()) log_warning(text);
  write(EventRecord{.level = "warning", .code = "step_skipped", .rank = 0, .text = text});
  if (progress_.skipped_in_row >= config_.train.max_nonfinite_steps) {
    throw NonFiniteError("stopped after " + std::to_string(progress_.skipped_in_row) +
                         " steps in a row with a loss or gradient that is not finite" + first +
                         "; lower optimizer.lr or look at the data (train.max_nonfinite_steps)");
  }
}

void Trainer::after_step(const StepOutcome& outcome) {
  const int64_t step = progress_.step.value;
  const bool last = step == data_.total_steps();
  stopping_ = outcome.stop;
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
    write(EvalRecord{.step = progress_.step,
                     .loss = result.loss,
                     .perplexity = result.perplexity,
                     .tokens = result.tokens,
                     .seconds = result.seconds});
    live_line_.clear();
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
    write(EventRecord{
        .level = "info", .code = "sample", .rank = 0, .text = sample.prompt + sample.text});
  }
}

void Trainer::note_sampler() {
  const DataCursor cursor = data_.cursor_after(progress_.step);
  progress_.sampler = Json{{"seed", cursor.seed},
                           {"epoch", cursor.epoch},
                           {"position", cursor.position},
                           {"data", hash_text(data_.fingerprint())}};
}

void Trainer::stage_commit() {
  if (engine_.drives() == nullptr) return;
  note_sampler();
  pending_commit_ = DurableStep{progress_.step.value, commit_note(progress_)};
}

void Trainer::commit() {
  if (!pending_commit_) return;
  const Clock::time_point begin = Clock::now();
  engine_.count_host_wait("a commit");
  NvmeStore* drives = engine_.drives();
  drives->commit(*pending_commit_, agreement_);
  // The step line is of no use without the step. One version is never committed.
  if (metrics_ && drives->committed()) {
    write(CommitRecord{.step = Step(pending_commit_->step),
                       .version = static_cast<int64_t>(drives->committed()->version),
                       .seconds = seconds_since(begin)});
  }
  pending_commit_.reset();
}

void Trainer::apply_updates() {
  engine_.apply_updates();
  commit();
}

SavedCheckpoint Trainer::write_checkpoint(const std::string& folder, int64_t keep) {
  apply_updates();
  note_sampler();
  if (metrics_) metrics_->sync();
  const RankGroups& groups = engine_.groups();
  return save_checkpoint(folder, keep, progress_,
                         {source_.spec(), engine_.layouts(), groups.shard()}, engine_.store(),
                         ranks_.world(), groups);
}

void Trainer::save() {
  const SavedCheckpoint saved = write_checkpoint(directory_.checkpoints(), config_.checkpoint.keep);
  saved_step_ = progress_.step;
  saved_path_ = saved.path;
  if (!ranks_.first()) return;
  write(CheckpointRecord{
      .step = progress_.step, .path = saved.path, .bytes = saved.bytes, .seconds = saved.seconds});
  directory_.write_status({.state = RunStatus::State::kRunning,
                           .exit_code = std::nullopt,
                           .step = progress_.step,
                           .saved_step = saved_step_,
                           .message = ""});
}

int Trainer::finish() {
  // A run that was killed after its last commit has no checkpoint of that step yet.
  if (saved_step_ != progress_.step) save();
  if (!ranks_.first()) return 0;
  if (config_.checkpoint.export_model == CheckpointSection::Export::kEnd) {
    const std::string destination = free_export_directory(source_, directory_.export_directory());
    // The last step's checkpoint holds every rank's part; nobody has to be asked.
    const Checkpoint last = Checkpoint::open(saved_path_);
    const ExportResult result = export_checkpoint(source_, last, destination, /*as_fp32=*/false);
    live_line_.clear();
    log_info("exported " + std::to_string(result.tensors) + " tensors, " +
             format_bytes(result.bytes) + ", to " + destination);
  }
  write(EndRecord{.status = "done", .exit_code = 0, .steps = progress_.step.value});
  return 0;
}

}  // namespace longshore
