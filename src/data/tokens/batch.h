// The micro-batches of a step, as flat streams of tokens in host memory. Pure functions of
// the data and sample numbers; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/batch.h"
#include "base/ids.h"
#include "data/tokens/dataset.h"
#include "data/tokens/sampler.h"

namespace longshore {

struct DataSection;

// Packing: assigns documents to sequences of at most max_tokens. A step counts sequences. The
// documents of a sequence are adjacent and do not attend to each other. Pure functions of lengths
// and seed.

// SequenceTable: the document numbers of every sequence.
class SequenceTable {
 public:
  int64_t sequence_count() const { return static_cast<int64_t>(starts_.size()) - 1; }
  std::span<const int64_t> documents_of(int64_t sequence) const;
  void append(std::span<const int64_t> documents);

 private:
  std::vector<int64_t> documents_;
  std::vector<int64_t> starts_ = {0};
};

struct PackingOptions {
  bool packing = true;
  int64_t max_tokens = 1024;
  // Documents are packed once, in an order that depends only on the seed; nullopt means file order.
  // Epochs permute whole sequences. A document's neighbors do not matter, because documents of a
  // sequence do not attend to each other.
  std::optional<uint64_t> shuffle_seed{};
  bool whole_rows = false;  // documents of one row stay in one sequence, in order
  // Another data set: its documents with the same numbers must fit into the sequences too; null:
  // none.
  const Dataset* beside = nullptr;
};

// Returns the run file's packing, without shuffling. The `answers` of a row are in one sequence,
// which has space for as many of the longest documents.
PackingOptions packing_options(const DataSection& data, int64_t answers);

// Packs by best fit: in a window of documents, longest first, each goes to the sequence with the
// least sufficient space. Documents of a sequence keep their order; sequences are ordered by first
// document. A document must not be longer than max_tokens. Without packing every document is a
// sequence, in file order.
SequenceTable make_sequences(const Dataset& dataset, const PackingOptions& options);

// RankShare: the micro-batches of a step or an evaluation that a rank computes: micro-batch k
// belongs to rank k mod ranks. Some ranks may get one more than others, or none.
struct RankShare {
  Rank rank;
  int32_t ranks = 1;
  bool has(int64_t micro_batch) const { return micro_batch % ranks == rank.value; }
};

// StepBatches: a rank's input of a step or an evaluation. Counts are over all ranks.
struct StepBatches {
  std::vector<Batch> micro_batches;  // those of the rank, in order
  int64_t micro_batch_count = 0;
  int64_t sequences = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  // The answers that people chose and their trained tokens. Of data that is not judged, all are.
  int64_t chosen_documents = 0, chosen_tokens = 0;
  double weight = 0.0;  // of the trained tokens; their number if no row has weights
};

// StepSamples: selects the samples of one step.
struct StepSamples {
  int64_t first_sample = 0;  // global number, from 0
  int64_t sequences = 0;     // sequences_per_step
  int64_t micro_batch = 1;   // sequences in a micro-batch; the last one may hold fewer
  // Derives dropout_keys from this seed, the sample's epoch, the document and the position in it.
  // An epoch has each document once, so no two tokens of a run have the same key, and the keys
  // depend on neither packing, micro_batch nor the steps' cuts.
  std::optional<uint64_t> dropout_seed = {};
};

// Returns the given sequences as one micro-batch with all columns of the data, as the only one of a
// step.
Batch make_token_batch(const Dataset& dataset, const SequenceTable& table,
                       std::span<const int64_t> sequences);

// Micro-batch k holds the `micro_batch` samples from first_sample + k * micro_batch on. Only the
// tokens of the share's micro-batches are read; the counts over all ranks come from the documents'
// lengths and, if rows have weights, from the weights of all documents.
StepBatches make_step_batches(const Dataset& dataset, const SequenceTable& table,
                              const Sampler& sampler, const StepSamples& samples,
                              const RankShare& share = {});

// Returns the first `max_sequences` sequences in order, each once; all if it is 0.
StepBatches make_eval_batches(const Dataset& dataset, const SequenceTable& table,
                              int64_t max_sequences, int64_t micro_batch,
                              const RankShare& share = {});

}  // namespace longshore
