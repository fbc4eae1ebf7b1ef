#include "data/batch.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"

namespace longshore {
namespace {

StepBatches cut_into_micro_batches(const Dataset& dataset, const SequenceTable& table,
                                   std::span<const int64_t> sequences, int64_t micro_batch) {
  LONGSHORE_CHECK(micro_batch >= 1) << micro_batch;
  StepBatches step;
  while (!sequences.empty()) {
    const size_t count = std::min(sequences.size(), static_cast<size_t>(micro_batch));
    TokenBatch batch = make_token_batch(dataset, table, sequences.first(count));
    sequences = sequences.subspan(count);
    step.sequences += batch.sequences;
    step.tokens += batch.token_count();
    step.trained_tokens += batch.trained_tokens;
    step.micro_batches.push_back(std::move(batch));
  }
  return step;
}

}  // namespace

TokenBatch make_token_batch(const Dataset& dataset, const SequenceTable& table,
                            std::span<const int64_t> sequences) {
  TokenBatch batch;
  batch.sequences = static_cast<int64_t>(sequences.size());
  for (const int64_t sequence : sequences) {
    for (const int64_t document : table.documents_of(sequence)) {
      const size_t start = batch.tokens.size();
      batch.document_starts.push_back(static_cast<int64_t>(start));
      batch.trained_tokens += dataset.document_trained_tokens(document);
      dataset.append_document(document, batch.tokens, batch.targets);
      batch.positions.resize(batch.tokens.size());
      std::iota(batch.positions.begin() + static_cast<int64_t>(start), batch.positions.end(),
                int64_t{0});
    }
  }
  batch.document_starts.push_back(batch.token_count());
  LONGSHORE_CHECK(batch.targets.size() == batch.tokens.size());
  return batch;
}

StepBatches make_step_batches(const Dataset& dataset, const SequenceTable& table,
                              const Sampler& sampler, const StepSamples& samples) {
  std::vector<int64_t> sequences(static_cast<size_t>(samples.sequences));
  for (int64_t i = 0; i < samples.sequences; ++i) {
    sequences[static_cast<size_t>(i)] = sampler.sequence_at(samples.first_sample + i);
  }
  return cut_into_micro_batches(dataset, table, sequences, samples.micro_batch);
}

StepBatches make_eval_batches(const Dataset& dataset, const SequenceTable& table,
                              int64_t max_sequences, int64_t micro_batch) {
  int64_t count = table.sequence_count();
  if (max_sequences > 0) count = std::min(count, max_sequences);
  std::vector<int64_t> sequences(static_cast<size_t>(count));
  std::iota(sequences.begin(), sequences.end(), int64_t{0});
  return cut_into_micro_batches(dataset, table, sequences, micro_batch);
}

}  // namespace longshore
