// The half of Trainer that decides where the run starts.
#include <filesystem>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/random.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_moments.h"
#include "trainer/directory/committed_steps.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/model/weight_check.h"
#include "trainer/run/resume_point.h"
#include "trainer/trainer.h"

namespace longshore {
namespace {

// Known only now where the run's length is given in epochs.
void check_schedule(const ScheduleSection& schedule, int64_t total_steps) {
  if (schedule.warmup_steps + schedule.decay_steps <= total_steps) return;
  throw ConfigError("schedule.warmup_steps + schedule.decay_steps = " +
                    std::to_string(schedule.warmup_steps + schedule.decay_steps) +
                    " is more than the run's " + std::to_string(total_steps) +
                    " steps; lower them or raise train.epochs");
}

}  // namespace

void Trainer::load_or_resume(const std::function<void(Step)>& begin) {
  const bool kept = resume_from_tier();
  if (!kept) {
    load_weights();
    resume(config_.checkpoint.resume);
  }
  check_schedule(config_.schedule, data_.total_steps());
  begin_record(begin);
  if (kept) {
    note_committed_step(progress_.step);
  } else {
    commit_start();
  }
  if (progress_.step.value == 0) say_random_weights();
  open_metrics();
  const TierPlan& plan = engine_.plan();
  reporter_.write(StartRecord{.plan = "device " + format_bytes(plan.device.total) + ", host " +
                                      format_bytes(plan.host.total),
                              .config_hash = hash_text(hash64(progress_.config_text)),
                              .ranks = ranks_.info().size,
                              .resumed_from = progress_.step});
  note_status();
}

// Whatever can refuse the run has been asked, on this rank.
void Trainer::begin_record(const std::function<void(Step)>& begin) {
  ranks_.world().exchange("the start of the run", "");
  if (!ranks_.first()) return;
  begin(progress_.step);
  clean_leftovers(directory_.checkpoints());
  for (const std::string& path : set_aside_newer(directory_.checkpoints(), progress_.step)) {
    log_warning("a newer checkpoint, of an abandoned history of this run, is now in " + path);
  }
  note_data_files();
}

void Trainer::commit_start() {
  if (!engine_.commits().commits()) return;
  note_data();
  engine_.commit({progress_.step.value, commit_note(progress_)});
  note_commit();
}

void Trainer::note_data_files() const {
  Json data = {{"train", to_json(data_.data())}};
  if (eval_data_) data["eval"] = to_json(*eval_data_);
  directory_.write_data(data);
  directory_.write_chat_template(data_.data().chat_template);
}

void Trainer::open_metrics() {
  std::string evaluated;
  if (ranks_.first()) {
    const std::string path = directory_.metrics_file();
    // The record of a course that the user left is kept beside.
    if (config_.checkpoint.resume != "auto") {
      const std::string kept = MetricsFile::set_aside(path, progress_.step);
      if (!kept.empty()) log_info("the metrics of the abandoned history are in " + kept);
      if (!committed_) note_committed(directory_.path(), false);  // they were given up
    }
    MetricsFile metrics = progress_.step.value == 0 ? MetricsFile::begin(path)
                                                    : MetricsFile::resume(path, progress_.step);
    if (config_.log.tensorboard) {
      metrics.copy_to_events(directory_.file("tensorboard"), Step(progress_.step.value + 1));
    }
    reporter_.open(std::move(metrics));
    evaluated = EvalTracker::of_metrics(path).text();
  }
  evaluations_ =
      EvalTracker::of_text(ranks_.world().exchange("the best evaluation", evaluated).front());
}

void Trainer::load_weights() {
  WeightCheck check;
  const ShardedModel model{source_.spec(), engine_.layouts(), engine_.groups().shard()};
  Progress progress("loading weights", model.fp32_bytes(true));
  engine_.load([&](const std::string& name, int64_t begin, std::span<float> out) {
    source_.read_initial(name, begin, out);
    check.take(name, out);
    progress.add(static_cast<Bytes>(out.size_bytes()));
  });
  const std::string found = check.conclude(source_.directory().path(), ranks_.world());
  if (!found.empty() && ranks_.first()) {
    log_warning(found + "; steps that meet them are skipped");
  }
}

// Never silent: whoever meant the directory's weights would train noise.
void Trainer::say_random_weights() const {
  if (source_.random() && ranks_.first()) log_warning(source_.random_weights_text());
}

void Trainer::check_start(Step start, const std::string& resume) const {
  if (resume != "auto") return;
  const CommittedSteps acknowledged = agree_on_committed_steps(directory_.path(), ranks_.world());
  if (acknowledged.beyond(start.value)) {
    refuse_lost_steps(acknowledged, start.value, directory_.path());
  }
}

void Trainer::resume(const std::string& resume) {
  // What a killed process left is nobody's record, and a checkpoint may have to be taken back.
  if (ranks_.first()) clean_leftovers(directory_.checkpoints());
  const FoundCheckpoint found = find_checkpoint(directory_.checkpoints(), resume, ranks_.world());
  check_start(found.checkpoint ? found.checkpoint->manifest().progress.step : Step(0), resume);
  for (const std::string& refused : found.refused) {
    log_warning("refused " + refused + "; an older checkpoint is used");
  }
  if (!found.checkpoint) {
    const int64_t steps =
        ranks_.first() && resume == "auto" ? last_step_of_metrics(directory_.metrics_file()) : 0;
    if (steps > 0) {
      log_warning("the run restarts at step 0: it had reached step " + std::to_string(steps) +
                  ", and no checkpoint was saved (checkpoint.every_steps)");
    }
    return;
  }
  const std::string& path = found.checkpoint->path();
  const std::string rounding =
      describe_rounding(found.checkpoint->manifest(), engine_.plan().state.format);
  if (!rounding.empty()) log_warning(path + ": " + rounding);
  continue_from(found.checkpoint->manifest().progress, path);
  found.checkpoint->restore({source_.spec(), engine_.layouts(), engine_.groups().shard()},
                            engine_.state_sweep());
  engine_.advance_version();
  saved_step_ = progress_.step;
  saved_path_ = path;
}

bool Trainer::resume_from_tier() {
  const std::optional<DurablePoint> point = engine_.commits().start(random_word());
  if (!point) return false;
  const CommittedSteps acknowledged = agree_on_committed_steps(directory_.path(), ranks_.world());
  if (acknowledged.step > point->step && ranks_.first()) {
    log_warning("step " + std::to_string(acknowledged.step) +
                " was committed, but is damaged on the drives (see the lines above); the run "
                "resumes from the previous version, after step " +
                std::to_string(point->step));
  }
  const RunProgress saved = read_commit_note(point->note, Step(point->step));
  continue_from(saved, "the state on the drives");
  engine_.advance_version();
  return true;
}

std::string Trainer::difference_from(const RunProgress& saved, const std::string& path) const {
  if (saved.model_fingerprint != progress_.model_fingerprint) {
    return path + ": was made from another model than " + source_.directory().path() +
           "; give its model.path, or another run.dir";
  }
  if (saved.data.fingerprint != data_.fingerprint() || saved.seed != progress_.seed) {
    return path +
           ": the training data, its tokens or run.seed changed since; restore them, or start over "
           "with checkpoint.resume = \"never\"";
  }
  return {};
}

// Cheap, and before anything is allocated; damage is found later, when all of it is read.
void Trainer::refuse_other_run() const {
  const std::string& resume = config_.checkpoint.resume;
  std::string problem;
  if (ranks_.first() && resume != "never") {
    std::vector<std::string> paths = {resume};
    if (resume == "auto") {
      paths.clear();
      for (const CheckpointEntry& entry : list_checkpoints(directory_.checkpoints())) {
        paths.push_back(entry.path);
      }
    }
    for (const std::string& path : paths) {
      try {
        problem = difference_from(Checkpoint::open(path).manifest().progress, path);
        break;
      } catch (const CheckpointError&) {
        // A damaged one, of which more is said when the run is resumed.
      }
    }
  }
  problem = ranks_.world().exchange("whether the run is the same", problem).front();
  if (!problem.empty()) throw CheckpointError(problem);
}

void Trainer::continue_from(const RunProgress& saved, const std::string& path) {
  const std::string problem = difference_from(saved, path);
  if (!problem.empty()) throw CheckpointError(problem);
  const std::string note = data_.resume_at(saved.step, saved.data, path);
  if (!note.empty() && ranks_.first()) log_warning(note);
  engine_.set_updates(saved.adam_step);
  progress_.step = saved.step;
  progress_.adam_step = saved.adam_step;
  progress_.skipped_total = saved.skipped_total;
  progress_.skipped_in_row = saved.skipped_in_row;
  if (saved.step.value == 0) return;
  log_info("resumed from " + path + " after step " + std::to_string(saved.step.value));
}

}  // namespace longshore
