#include "trainer/run_data.h"

#include <filesystem>

#include "base/log.h"
#include "text/tokenizer.h"

namespace longshore {
namespace {

// Files of token ids need no tokenizer; a directory without one is fine for them.
std::optional<Tokenizer> load_tokenizer(const RunConfig& config, const ModelSource& source) {
  const bool tokens_only = config.data.format == DataSection::Format::kTokens;
  const std::string path = source.directory().path_of("tokenizer.json");
  if (tokens_only ||
      (config.data.format == DataSection::Format::kAuto && !std::filesystem::exists(path))) {
    return std::nullopt;
  }
  return Tokenizer::load(source.directory().path());
}

}  // namespace

SequenceData load_sequences(const RunConfig& config, const ModelSource& source,
                            const std::vector<std::string>& files, bool shuffle_packing,
                            const StopCheck& stop) {
  const std::optional<Tokenizer> tokenizer = load_tokenizer(config, source);
  LoadedData loaded = load_dataset({.files = files,
                                    .data = config.data,
                                    .tokenizer = tokenizer ? &*tokenizer : nullptr,
                                    .model_vocabulary_size = source.arch().vocabulary,
                                    .on_progress = [&stop](Bytes) { stop(); }});
  SequenceData data;
  PackingOptions packing{.packing = config.data.packing,
                         .max_tokens = config.data.max_tokens,
                         .shuffle_seed = std::nullopt};
  if (shuffle_packing) packing.shuffle_seed = static_cast<uint64_t>(config.run.seed);
  data.table = make_sequences(*loaded.dataset, packing);
  data.dataset = std::move(loaded.dataset);
  data.report = std::move(loaded.report);
  for (const std::string& line : data.report.lines()) log_info(line);
  return data;
}

TrainingData::TrainingData(const RunConfig& config, SequenceData data)
    : data_(std::move(data)),
      sampler_({.seed = static_cast<uint64_t>(config.run.seed),
                .sequences = data_.table.sequence_count(),
                .shuffle = config.data.shuffle}),
      sequences_per_step_(config.train.sequences_per_step),
      micro_batch_(config.train.micro_batch),
      total_steps_(config.train.steps > 0
                       ? config.train.steps
                       : sampler_.steps_for(config.train.epochs, sequences_per_step_)) {}

void TrainingData::resume_at(Step step, const DataCursor& cursor) {
  base_step_ = step;
  base_samples_ = sampler_.samples_before(cursor);
}

int64_t TrainingData::samples_before(Step step) const {
  return base_samples_ + (step.value - base_step_.value) * sequences_per_step_;
}

StepBatches TrainingData::step_batches(Step step) const {
  return make_step_batches(*data_.dataset, data_.table, sampler_,
                           {.first_sample = samples_before(Step(step.value - 1)),
                            .sequences = sequences_per_step_,
                            .micro_batch = micro_batch_});
}

DataCursor TrainingData::cursor_after(Step step) const {
  return sampler_.cursor_after(samples_before(step));
}

double TrainingData::epochs_after(Step step) const {
  return sampler_.epochs_in(samples_before(step));
}

std::vector<HostBatch> host_batches(const std::vector<TokenBatch>& batches) {
  std::vector<HostBatch> views;
  views.reserve(batches.size());
  for (const TokenBatch& batch : batches) {
    views.push_back({.tokens = batch.tokens,
                     .positions = batch.positions,
                     .targets = batch.targets,
                     .document_starts = batch.document_starts});
  }
  return views;
}

}  // namespace longshore
