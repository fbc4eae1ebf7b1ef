// The tokenised sequences of a run and their assignment to steps. Loaded before the first
// step, immutable afterwards. Owned by the trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/json.h"
#include "config/run_config.h"
#include "data/rows/data_report.h"
#include "data/tokens/batch.h"
#include "data/tokens/dataset.h"
#include "data/tokens/sampler.h"
#include "model/losses/loss.h"
#include "trainer/checkpoint/run_progress.h"
#include "trainer/model/model_source.h"
#include "trainer/model/trained_text.h"

namespace longshore {

// Called periodically while files are read; throws to stop after a signal.
using StopCheck = std::function<void()>;

// DataPart: the part of the files that eval.split held out, or the remaining part.
struct DataPart {
  bool held_out = false;
  double fraction = 0.0;  // eval.split
  int64_t documents = 0, tokens = 0;
  int64_t trained_tokens = 0;  // tokens with a loss
};

// SequenceData contains the files of data.train or data.eval as sequences.
struct SequenceData {
  std::unique_ptr<Dataset> dataset;
  std::unique_ptr<Dataset> mismatched;  // rows with others' answers; null but for KTO
  SequenceTable table;
  DataReport report;                 // covers whole files
  std::optional<DataPart> part;      // empty: all of the files
  std::string mix;                   // the rows of an epoch by data.mix; "" without
  TextEnds ends;                     // ends of training documents; needs a tokenizer
  std::string chat_template;         // exported after training on conversations; empty: none
  uint64_t tokenizer = 0, chat = 0;  // fingerprints of tokenizer and template; 0: none
  bool conversations = false;
  bool dropout = false;  // the steps' batches have keys of dropout
};

// Returns the entry of <run.dir>/data.json: the number of sequences, a report per file, and the
// part of the files in use.
Json to_json(const SequenceData& data);

// InputChanges: inputs that differ from those of an earlier start of the run in ways that do not
// prevent resuming. Plain value.
struct InputChanges {
  std::vector<std::string> warnings;
  bool evaluation = false;  // earlier evaluation losses are of other data
};
// Compares two contents of data.json; a member that one of them lacks is not compared.
InputChanges changed_inputs(const Json& before, const Json& now);

// Returns a text with the number of rows in a step if packing puts several into a sequence;
// otherwise "".
std::string packed_rows_text(const RunConfig& config, const SequenceData& data);

// Training packs documents in an order that depends on the seed, evaluation in file order.
enum class SequenceUse : uint8_t { kTrain, kEvaluate };

// The lines that are logged about the files: one for each, one for all of them and the warnings, or
// none.
enum class Say : uint8_t { kAll, kSum, kNone };

// Objective: the run's loss for one data set. Plain value.
struct Objective {
  std::shared_ptr<const Loss> loss;
  // The reference log-probabilities by document, with KTO followed by those of mismatched
  // documents; empty for a loss without a reference.
  std::vector<double> references = {};
};

// EvaluationSet: data for which an evaluation computes one loss.
struct EvaluationSet {
  std::string name;  // "" for data.eval or the part that eval.split holds out
  SequenceData data;
  std::optional<Objective> objective = {};  // empty until its references are known
};

// Returns whether data.eval or eval.sets is set or eval.split holds out a part of data.train.
bool has_evaluation_data(const RunConfig& config);

// Returns a run file's section for each evaluation set, by name: `data.eval` has its files. The
// unnamed set comes first. Throws ConfigError if a value of eval.sets is neither a file nor a list
// of files.
std::vector<std::pair<std::string, RunConfig>> evaluation_sets(const RunConfig& config);

// Loads the documents for this use from the cache of prepared data, after preparing missing ones.
// Safe in several processes at once.
SequenceData load_sequences(const RunConfig& config, const ModelSource& source, SequenceUse use,
                            const StopCheck& stop, Say say = Say::kAll);

// Loads all evaluation sets; empty without any.
std::vector<EvaluationSet> load_evaluation_sets(const RunConfig& config, const ModelSource& source,
                                                const StopCheck& stop, Say say = Say::kAll);

// TrainingData provides the batches of each step of a run.
class TrainingData {
 public:
  TrainingData(const RunConfig& config, SequenceData data);

  // Returns the steps of the whole run: train.steps, or the number that train.epochs results in.
  int64_t total_steps() const { return total_steps_; }
  // Returns the number of steps of the run if `train` set its length from the present position on.
  int64_t steps_of(const TrainSection& train) const;
  // Continues after `step` at the data position `saved`, independent of the earlier
  // sequences_per_step, and recomputes total_steps from the rest of train.epochs. If an epoch now
  // has another number of sequences, the same share of it counts as seen, and a line about it is
  // returned; otherwise "". CheckpointError with `path` for a position outside the data.
  std::string resume_at(Step step, const DataState& saved, const std::string& path);
  // Returns the batches of a rank.
  StepBatches step_batches(Step step, const RankShare& share) const;
  // Returns the mismatched rows of these batches; only with KTO.
  StepBatches mismatched_batches(Step step, const RankShare& share) const;
  // Returns the data position after `step` steps.
  DataCursor cursor_after(Step step) const;
  double epochs_after(Step step) const;
  int64_t sequence_count() const { return data_.table.sequence_count(); }
  uint64_t fingerprint() const { return data_.dataset->fingerprint(); }
  const SequenceData& data() const { return data_; }

 private:
  int64_t samples_before(Step step) const;
  StepSamples samples_of(Step step) const;

  SequenceData data_;
  Sampler sampler_;
  int64_t sequences_per_step_;
  int64_t micro_batch_;
  uint64_t seed_;
  TrainSection train_;        // steps or epochs set the length
  Step base_step_;            // step at which this process started
  int64_t base_samples_ = 0;  // samples before base_step_
  int64_t total_steps_;
};

// Returns whether rows of this format are trained as conversations, whose ends a chat template
// writes.
bool holds_conversations(std::string_view format, const DataSection& data);

// Returns the loss that the run file asks for.
std::shared_ptr<const Loss> loss_of(const RunConfig& config);

// Returns the divisor of a loss over these batches: their pairs or rows if answers are judged, else
// the weight of their trained tokens.
double loss_terms(const StepBatches& batches, const Loss& loss);

// Sets the reference log-probabilities of the batches' documents, which begin at `first_reference`
// of the objective's.
void set_references(std::vector<Batch>& batches, const Objective& objective,
                    size_t first_reference = 0);
// Sets KTO's kl of the step or the evaluation.
void set_kl(std::vector<Batch>& batches, double kl);

}  // namespace longshore
