#include "data/tokens/batch.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/errors.h"
#include "base/random.h"
#include "config/run_config.h"
#include "data/tokens/sampler.h"

namespace longshore {
namespace {

// The documents of one window. Larger windows gain less than 0.1 % and disturb the order more.
constexpr int64_t kWindowDocuments = 8192;
// The limit of sequences with free space; the fullest is closed when there are more.
constexpr size_t kMaxOpenSequences = 1024;

// RowStarts: the documents that are packed together: those of one row, or each alone.
class RowStarts {
 public:
  RowStarts(const Dataset& dataset, bool whole_rows) {
    if (whole_rows) {
      starts_ = row_starts(dataset);
      return;
    }
    starts_.resize(static_cast<size_t>(dataset.document_count() + 1));
    std::iota(starts_.begin(), starts_.end(), int64_t{0});
  }
  int64_t count() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t first(int64_t row) const { return starts_[static_cast<size_t>(row)]; }
  int64_t end(int64_t row) const { return starts_[static_cast<size_t>(row + 1)]; }

 private:
  std::vector<int64_t> starts_;  // and the number of documents
};

// Packer: groups positions of the packing order into sequences.
class Packer {
 public:
  // `rows` and `order`, of rows, must outlive the packer.
  Packer(const Dataset& dataset, const RowStarts& rows, std::span<const int64_t> order,
         const PackingOptions& options)
      : dataset_(dataset),
        beside_(options.beside),
        rows_(rows),
        order_(order),
        max_tokens_(options.max_tokens) {}

  // Packs the rows at positions [first, last), longest first; equal lengths keep their order.
  void pack_window(int64_t first, int64_t last) {
    std::vector<int64_t> window(static_cast<size_t>(last - first));
    std::iota(window.begin(), window.end(), first);
    std::stable_sort(window.begin(), window.end(),
                     [this](int64_t a, int64_t b) { return tokens_at(a) > tokens_at(b); });
    for (const int64_t place : window) add(place);
  }

  // Returns the sequences by first document, each with its documents in order.
  SequenceTable finish() {
    for (std::vector<int64_t>& places : sequences_) std::sort(places.begin(), places.end());
    std::sort(sequences_.begin(), sequences_.end());
    SequenceTable table;
    for (const std::vector<int64_t>& places : sequences_) {
      std::vector<int64_t> documents;
      for (const int64_t place : places) {
        const int64_t row = order_[static_cast<size_t>(place)];
        for (int64_t d = rows_.first(row); d < rows_.end(row); ++d) documents.push_back(d);
      }
      table.append(documents);
    }
    return table;
  }

 private:
  int64_t tokens_at(int64_t place) const {
    const int64_t row = order_[static_cast<size_t>(place)];
    int64_t tokens = 0;
    for (int64_t d = rows_.first(row); d < rows_.end(row); ++d) {
      const int64_t other = beside_ == nullptr ? 0 : beside_->document_tokens(d);
      tokens += std::max(dataset_.document_tokens(d), other);
    }
    return tokens;
  }

  void add(int64_t place) {
    const int64_t tokens = tokens_at(place);
    LONGSHORE_CHECK(tokens <= max_tokens_) << "place " << place << ": " << tokens;
    // Takes the least sufficient space; among equals the sequence that has waited longest.
    const auto best = open_.lower_bound(tokens);
    int64_t space = max_tokens_;
    size_t sequence = sequences_.size();
    if (best != open_.end()) {
      space = best->first;
      sequence = best->second;
      open_.erase(best);
    } else {
      sequences_.emplace_back();
    }
    sequences_[sequence].push_back(place);
    if (space > tokens) open_.emplace(space - tokens, sequence);
    if (open_.size() > kMaxOpenSequences) open_.erase(open_.begin());
  }

  const Dataset& dataset_;
  const Dataset* beside_;
  const RowStarts& rows_;
  const std::span<const int64_t> order_;
  const int64_t max_tokens_;
  std::vector<std::vector<int64_t>> sequences_;
  std::multimap<int64_t, size_t> open_;  // space left -> sequence
};

std::vector<int64_t> packing_order(int64_t documents, std::optional<uint64_t> shuffle_seed) {
  std::vector<int64_t> order(static_cast<size_t>(documents));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (shuffle_seed && documents > 0) {
    const IndexPermutation permutation(documents, *shuffle_seed,
                                       IndexPermutation::Purpose::kPackingOrder, 0);
    for (int64_t& document : order) document = permutation(document);
  }
  return order;
}

// Appends the values of a document's trained tokens, whose targets these are.
void append_trained(const Dataset& dataset, int64_t document, ColumnId column,
                    std::span<const int64_t> targets, std::vector<float>& out) {
  const std::vector<float> values = dataset.column_of(document, column);
  const size_t width = dataset.width_of(column);
  LONGSHORE_CHECK(values.size() == targets.size() * width) << values.size();
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == kNotTrained) continue;
    const auto value = values.begin() + static_cast<int64_t>(t * width);
    out.insert(out.end(), value, value + static_cast<int64_t>(width));
  }
}

// Appends the columns of a document. The batch's last targets are the document's.
void append_columns(const Dataset& dataset, int64_t document, Batch& batch) {
  const auto tokens = static_cast<size_t>(dataset.document_tokens(document));
  const std::span<const int64_t> targets = std::span(batch.targets()).last(tokens);
  for (size_t c = 0; c < kTokenColumns; ++c) {
    const auto column = static_cast<ColumnId>(c);
    if (!dataset.has_column(column)) continue;
    if (kColumnTable[c].of_teacher) batch.columns.teacher_tokens = dataset.width_of(column);
    append_trained(dataset, document, column, targets, batch.columns[c]);
  }
}

// Adds the weights of a document of another rank in the order in which its own rank adds them, so
// that all ranks have the same sum.
void add_weights(const Dataset& dataset, int64_t document, double& sum) {
  std::vector<int64_t> tokens, targets;
  dataset.append_document(document, tokens, targets);
  std::vector<float> weights;
  append_trained(dataset, document, kWeightColumn, targets, weights);
  for (const float weight : weights) sum += static_cast<double>(weight);
}

// Returns the mean of trained tokens of chosen answers; 0 without answers.
double mean_tokens(int64_t tokens, int64_t documents) {
  return documents == 0 ? 0.0 : static_cast<double>(tokens) / static_cast<double>(documents);
}

// Adds a document to the counts of a step.
void count_document(const Dataset& dataset, int64_t document, StepBatches& step) {
  const int64_t trained = dataset.document_trained_tokens(document);
  step.documents += 1;
  step.tokens += dataset.document_tokens(document);
  step.trained_tokens += trained;
  if (!dataset.is_desirable(document)) return;
  step.chosen_documents += 1;
  step.chosen_tokens += trained;
}

StepBatches cut_into_micro_batches(const Dataset& dataset, const SequenceTable& table,
                                   std::span<const int64_t> sequences, int64_t micro_batch,
                                   const RankShare& share) {
  LONGSHORE_CHECK(micro_batch >= 1) << micro_batch;
  StepBatches step;
  step.sequences = std::ssize(sequences);
  const bool weighted = dataset.has_column(kWeightColumn);
  for (; !sequences.empty(); ++step.micro_batch_count) {
    const size_t count = std::min(sequences.size(), static_cast<size_t>(micro_batch));
    const std::span<const int64_t> some = sequences.first(count);
    sequences = sequences.subspan(count);
    const bool own = share.has(step.micro_batch_count);
    for (const int64_t sequence : some) {
      for (const int64_t document : table.documents_of(sequence)) {
        count_document(dataset, document, step);
        if (weighted && !own) add_weights(dataset, document, step.weight);
      }
    }
    if (!own) continue;
    step.micro_batches.push_back(make_token_batch(dataset, table, some));
    for (const float weight : step.micro_batches.back().columns[kWeightColumn]) {
      step.weight += static_cast<double>(weight);
    }
  }
  if (!weighted) step.weight = static_cast<double>(step.trained_tokens);
  for (Batch& batch : step.micro_batches) {
    batch.columns.get<kChosenTokensColumn>() = {
        mean_tokens(step.chosen_tokens, step.chosen_documents)};
  }
  return step;
}

// Separates the keys of dropout from what else is drawn from the seed of a run.
constexpr uint32_t kDropoutPurpose = 0x64726f70;  // "drop"

// Appends the keys of the tokens of a document.
void append_dropout_keys(uint64_t seed, int64_t epoch, int64_t document, int64_t tokens,
                         std::vector<int64_t>& keys) {
  const auto low = [](auto number) { return static_cast<uint32_t>(number); };
  const PhiloxKey key{low(seed), low(seed >> 32) ^ kDropoutPurpose};
  for (int64_t position = 0; position < tokens; ++position) {
    const std::array<uint32_t, 4> words =
        philox4x32({low(position), low(document), low(document >> 32), low(epoch)}, key);
    keys.push_back(static_cast<int64_t>(uint64_t{words[1]} << 32 | words[0]));
  }
}

}  // namespace

std::span<const int64_t> SequenceTable::documents_of(int64_t sequence) const {
  LONGSHORE_CHECK(sequence >= 0 && sequence < sequence_count())
      << sequence << " of " << sequence_count();
  const auto begin = static_cast<size_t>(starts_[sequence]);
  const auto end = static_cast<size_t>(starts_[sequence + 1]);
  return std::span<const int64_t>(documents_).subspan(begin, end - begin);
}

void SequenceTable::append(std::span<const int64_t> documents) {
  LONGSHORE_CHECK(!documents.empty());
  documents_.insert(documents_.end(), documents.begin(), documents.end());
  starts_.push_back(static_cast<int64_t>(documents_.size()));
}

PackingOptions packing_options(const DataSection& data, int64_t answers) {
  return {
      .packing = data.packing, .max_tokens = answers * data.max_tokens, .whole_rows = answers > 1};
}

SequenceTable make_sequences(const Dataset& dataset, const PackingOptions& options) {
  const RowStarts rows(dataset, options.whole_rows);
  std::vector<int64_t> order = packing_order(
      rows.count(), options.packing ? options.shuffle_seed : std::optional<uint64_t>());
  if (!options.packing) {
    SequenceTable table;
    for (const int64_t row : order) {
      std::vector<int64_t> documents(static_cast<size_t>(rows.end(row) - rows.first(row)));
      std::iota(documents.begin(), documents.end(), rows.first(row));
      table.append(documents);
    }
    return table;
  }
  Packer packer(dataset, rows, order, options);
  for (int64_t first = 0; first < rows.count(); first += kWindowDocuments) {
    packer.pack_window(first, std::min(rows.count(), first + kWindowDocuments));
  }
  return packer.finish();
}

Batch make_token_batch(const Dataset& dataset, const SequenceTable& table,
                       std::span<const int64_t> sequences) {
  Batch batch;
  StepBatches alone;
  batch.sequences = static_cast<int64_t>(sequences.size());
  for (const int64_t sequence : sequences) {
    for (const int64_t document : table.documents_of(sequence)) {
      const int64_t start = batch.token_count();
      batch.document_starts.push_back(start);
      batch.columns.get<kDocumentColumn>().push_back(document);
      batch.columns.get<kDesirableColumn>().push_back(dataset.is_desirable(document) ? 1 : 0);
      count_document(dataset, document, alone);
      dataset.append_document(document, batch.tokens(), batch.targets());
      append_columns(dataset, document, batch);
      std::vector<int64_t>& positions = batch.positions();
      positions.resize(batch.tokens().size());
      std::iota(positions.begin() + start, positions.end(), int64_t{0});
    }
  }
  batch.document_starts.push_back(batch.token_count());
  batch.trained_tokens = alone.trained_tokens;
  batch.columns.get<kChosenTokensColumn>() = {
      mean_tokens(alone.chosen_tokens, alone.chosen_documents)};
  LONGSHORE_CHECK(batch.targets().size() == batch.tokens().size());
  return batch;
}

StepBatches make_step_batches(const Dataset& dataset, const SequenceTable& table,
                              const Sampler& sampler, const StepSamples& samples,
                              const RankShare& share) {
  std::vector<int64_t> sequences(static_cast<size_t>(samples.sequences));
  for (int64_t i = 0; i < samples.sequences; ++i) {
    sequences[static_cast<size_t>(i)] = sampler.sequence_at(samples.first_sample + i);
  }
  StepBatches step = cut_into_micro_batches(dataset, table, sequences, samples.micro_batch, share);
  if (!samples.dropout_seed) return step;
  int64_t first = share.rank.value * samples.micro_batch;  // of the batch, in the step
  for (Batch& batch : step.micro_batches) {
    std::vector<int64_t>& keys = batch.columns.get<kDropoutKeyColumn>();
    keys.reserve(batch.tokens().size());
    for (int64_t i = first; i < first + batch.sequences; ++i) {
      const int64_t epoch = sampler.cursor_after(samples.first_sample + i).epoch;
      for (const int64_t document : table.documents_of(sequences[static_cast<size_t>(i)])) {
        append_dropout_keys(*samples.dropout_seed, epoch, document,
                            dataset.document_tokens(document), keys);
      }
    }
    LONGSHORE_CHECK(keys.size() == batch.tokens().size());
    first += share.ranks * samples.micro_batch;
  }
  return step;
}

StepBatches make_eval_batches(const Dataset& dataset, const SequenceTable& table,
                              int64_t max_sequences, int64_t micro_batch, const RankShare& share) {
  int64_t count = table.sequence_count();
  if (max_sequences > 0) count = std::min(count, max_sequences);
  std::vector<int64_t> sequences(static_cast<size_t>(count));
  std::iota(sequences.begin(), sequences.end(), int64_t{0});
  return cut_into_micro_batches(dataset, table, sequences, micro_batch, share);
}

}  // namespace longshore
