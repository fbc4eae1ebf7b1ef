// RunData: the tokenised sequences of a run, and which of them each step takes. Loaded before the
// first step; immutable afterwards. Owned by the trainer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"
#include "data/batch.h"
#include "data/data_report.h"
#include "data/dataset.h"
#include "data/packing.h"
#include "data/sampler.h"
#include "offload/engine/batch_stage.h"
#include "trainer/checkpoint/run_progress.h"
#include "trainer/model/model_source.h"
#include "trainer/model/trained_text.h"

namespace longshore {

// Called now and then while files are read; throws to stop (a signal).
using StopCheck = std::function<void()>;

// What eval.split left of the files, or held out of them.
struct DataPart {
  bool held_out = false;
  double fraction = 0.0;  // eval.split
  int64_t documents = 0, tokens = 0;
  int64_t trained_tokens = 0;  // of them with a loss
};

// The files of one list, as sequences.
struct SequenceData {
  std::unique_ptr<Dataset> dataset;
  SequenceTable table;
  DataReport report;             // of whole files
  std::optional<DataPart> part;  // none: all of the files
  TextEnds ends;                 // of training documents, where a tokenizer wrote them
  std::string chat_template;     // to export with what is trained on conversations; empty: none
  bool conversations = false;
};

// For <run.dir>/data.json: how many sequences, what became of each file, and which part of the
// files it is.
Json to_json(const SequenceData& data);

// What sequences are for: training packs documents in the seed's order, evaluation in the files'.
enum class SequenceUse : uint8_t { kTrain, kEvaluate };

// Whether there is anything to evaluate on: data.eval, or a part of data.train.
bool has_evaluation_data(const RunConfig& config);

// The documents that the run file names for this use, from the cache of prepared data, where they
// are put first if they are not there yet. Safe in several processes at once.
SequenceData load_sequences(const RunConfig& config, const ModelSource& source, SequenceUse use,
                            const StopCheck& stop);

// What the steps of a run train on.
class TrainingData {
 public:
  TrainingData(const RunConfig& config, SequenceData data);

  // Steps of the whole run: train.steps, or what train.epochs comes to.
  int64_t total_steps() const { return total_steps_; }
  // Steps after `step` go on from where `saved` is, whatever sequences_per_step was before; what is
  // left of train.epochs decides total_steps anew. Where an epoch has another number of sequences
  // now, the same share of it counts as seen, and the returned line says so; else that is empty.
  // CheckpointError, led by `path`, for a place outside the data.
  std::string resume_at(Step step, const DataState& saved, const std::string& path);
  StepBatches step_batches(Step step) const;
  // After `step` steps.
  DataCursor cursor_after(Step step) const;
  double epochs_after(Step step) const;
  int64_t sequence_count() const { return data_.table.sequence_count(); }
  uint64_t fingerprint() const { return data_.dataset->fingerprint(); }
  const SequenceData& data() const { return data_; }

 private:
  int64_t samples_before(Step step) const;

  SequenceData data_;
  Sampler sampler_;
  int64_t sequences_per_step_;
  int64_t micro_batch_;
  double epochs_;  // 0: train.steps decides
  int64_t total_steps_;
  Step base_step_;            // where this process began
  int64_t base_samples_ = 0;  // samples before that
};

// Views of the batches, as the engine copies them to the device; `batches` must outlive them.
std::vector<HostBatch> host_batches(const std::vector<TokenBatch>& batches);

}  // namespace longshore
