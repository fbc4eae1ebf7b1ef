#include "data/tokens/batch.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "tests/data/memory_documents.h"

namespace longshore {
namespace {

using Ids = std::vector<int64_t>;

// The target of a token is the label of the next token; the last token has none.
TEST(Dataset, ShiftsLabelsToTheTokenBefore) {
  InMemoryDataset dataset;
  EXPECT_EQ(dataset.add(std::vector<TokenId>{5, 6, 7, 8}, std::vector<TokenId>{5, -100, 7, 9}), 2);
  Ids tokens, targets;
  dataset.append_document(0, tokens, targets);
  EXPECT_EQ(tokens, (Ids{5, 6, 7, 8}));
  EXPECT_EQ(targets, (Ids{-100, 7, 9, -100}));
}

// A document without a target is not taken; the first label is never a target.
TEST(Dataset, TakesNoDocumentWithoutATarget) {
  InMemoryDataset dataset;
  EXPECT_EQ(dataset.add(std::vector<TokenId>{5, 6}, std::vector<TokenId>{5, -100}), 0);
  EXPECT_EQ(dataset.add(std::vector<TokenId>{5}, std::vector<TokenId>{5}), 0);
  EXPECT_EQ(dataset.document_count(), 0);
}

// The fingerprint of a dataset changes with any label or document border.
TEST(Dataset, HasAnotherFingerprintWhenALabelOrABorderDiffers) {
  const auto fingerprint = [](std::vector<std::pair<Ids, Ids>> documents) {
    InMemoryDataset dataset;
    for (const auto& [tokens, labels] : documents) {
      dataset.add(std::vector<TokenId>(tokens.begin(), tokens.end()),
                  std::vector<TokenId>(labels.begin(), labels.end()));
    }
    return dataset.fingerprint();
  };
  const Ids all = {1, 2, 3, 4};
  EXPECT_EQ(fingerprint({{all, all}}), fingerprint({{all, all}}));
  EXPECT_NE(fingerprint({{all, all}}), fingerprint({{all, {1, 2, -100, 4}}}));
  EXPECT_NE(fingerprint({{all, all}}), fingerprint({{{1, 2}, {1, 2}}, {{3, 4}, {3, 4}}}));
}

// A batch holds its documents end to end, with positions from 0 in each.
TEST(Batch, LaysDocumentsEndToEnd) {
  const Ids lengths = {3, 2, 4};
  const InMemoryDataset dataset = documents_of_lengths(lengths);
  const SequenceTable table = make_sequences(dataset, {.packing = false, .max_tokens = 8});
  const Batch batch = make_token_batch(dataset, table, Ids{2, 0});
  EXPECT_EQ(batch.tokens(), (Ids{2000, 2001, 2002, 2003, 0, 1, 2}));
  EXPECT_EQ(batch.positions(), (Ids{0, 1, 2, 3, 0, 1, 2}));
  EXPECT_EQ(batch.targets(), (Ids{2001, 2002, 2003, -100, 1, 2, -100}));
  EXPECT_EQ(batch.document_starts, (Ids{0, 4, 7}));
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.trained_tokens, 5);
}

// An epoch holds every token of every document once, with position and target; no token predicts
// the first token of the next document.
TEST(Batch, AnEpochHoldsEveryTokenOnce) {
  constexpr int64_t kMaxTokens = 100, kDocuments = 400, kPerStep = 6;
  const Ids lengths = random_lengths(kDocuments, kMaxTokens, 11);
  const InMemoryDataset dataset = documents_of_lengths(lengths);
  for (const bool packing : {true, false}) {
    const SequenceTable table =
        make_sequences(dataset, {.packing = packing, .max_tokens = kMaxTokens, .shuffle_seed = 1});
    const Sampler sampler({.seed = 1, .sequences = table.sequence_count(), .shuffle = true});
    std::map<int64_t, int64_t> seen;
    for (int64_t first = 0; first < table.sequence_count(); first += kPerStep) {
      const int64_t count = std::min(kPerStep, table.sequence_count() - first);
      const StepBatches step = make_step_batches(
          dataset, table, sampler, {.first_sample = first, .sequences = count, .micro_batch = 4});
      for (const Batch& batch : step.micro_batches) {
        for (size_t t = 0; t < batch.tokens().size(); ++t) {
          const int64_t token = batch.tokens()[t], position = token % 1000, document = token / 1000;
          ++seen[token];
          ASSERT_EQ(batch.positions()[t], position);
          const bool last = position + 1 == lengths[static_cast<size_t>(document)];
          ASSERT_EQ(batch.targets()[t], last ? int64_t{kNotTrained} : token + 1);
        }
      }
    }
    int64_t tokens = 0;
    for (int64_t length : lengths) tokens += length;
    EXPECT_EQ(static_cast<int64_t>(seen.size()), tokens);
    for (const auto& [token, times] : seen) ASSERT_EQ(times, 1) << token;
  }
}

// The size of a micro-batch changes the cuts of a step, not its samples.
TEST(Batch, CutsAStepIntoMicroBatchesWithoutChangingItsSamples) {
  const InMemoryDataset dataset = documents_of_lengths(random_lengths(50, 40, 3));
  const SequenceTable table = make_sequences(dataset, {.packing = false, .max_tokens = 40});
  const Sampler sampler({.seed = 5, .sequences = table.sequence_count(), .shuffle = true});
  const auto step_tokens = [&](int64_t micro_batch) {
    const StepBatches step = make_step_batches(
        dataset, table, sampler, {.first_sample = 40, .sequences = 13, .micro_batch = micro_batch});
    EXPECT_EQ(step.sequences, 13);
    EXPECT_EQ(static_cast<int64_t>(step.micro_batches.size()), (12 + micro_batch) / micro_batch);
    Ids tokens;
    int64_t trained = 0;
    for (const Batch& batch : step.micro_batches) {
      tokens.insert(tokens.end(), batch.tokens().begin(), batch.tokens().end());
      trained += batch.trained_tokens;
    }
    EXPECT_EQ(trained, step.trained_tokens);
    EXPECT_EQ(static_cast<int64_t>(tokens.size()), step.tokens);
    return tokens;
  };
  const Ids whole = step_tokens(13);
  EXPECT_EQ(step_tokens(1), whole);
  EXPECT_EQ(step_tokens(4), whole);
}

// Returns the keys of the samples of one step, by token.
std::multimap<int64_t, int64_t> keys_of(const Dataset& dataset, const PackingOptions& packing,
                                        int64_t epoch, int64_t micro_batch, uint64_t seed = 9) {
  const SequenceTable table = make_sequences(dataset, packing);
  const int64_t count = table.sequence_count();
  const Sampler sampler({.seed = 5, .sequences = count, .shuffle = true});
  const StepBatches step = make_step_batches(dataset, table, sampler,
                                             {.first_sample = epoch * count,
                                              .sequences = count,
                                              .micro_batch = micro_batch,
                                              .dropout_seed = seed});
  std::multimap<int64_t, int64_t> keys;
  for (const Batch& batch : step.micro_batches) {
    EXPECT_EQ(batch.columns.get<kDropoutKeyColumn>().size(), batch.tokens().size());
    for (size_t t = 0; t < batch.tokens().size(); ++t) {
      keys.emplace(batch.tokens()[t], batch.columns.get<kDropoutKeyColumn>().at(t));
    }
  }
  return keys;
}

// A token's key depends on the seed, the epoch, the document and the position, and on neither
// micro-batches, packing nor the order of samples. No two tokens have the same.
TEST(Batch, GivesEveryTokenOfARunAKeyOfItsOwn) {
  const InMemoryDataset dataset = documents_of_lengths(random_lengths(50, 40, 3));
  const PackingOptions alone{.packing = false, .max_tokens = 40};
  const PackingOptions packed{.packing = true, .max_tokens = 40, .shuffle_seed = 1};
  const auto first = keys_of(dataset, alone, 0, 1);
  EXPECT_EQ(keys_of(dataset, alone, 0, 7), first);
  EXPECT_EQ(keys_of(dataset, packed, 0, 3), first);
  std::map<int64_t, int64_t> times;
  for (const auto& keys :
       {first, keys_of(dataset, alone, 1, 1), keys_of(dataset, alone, 0, 1, 8)}) {
    EXPECT_EQ(keys.size(), first.size());
    for (const auto& [token, key] : keys) ++times[key];
  }
  EXPECT_EQ(times.size(), 3 * first.size());
}

// CountedReads: documents of another set, of which every second was chosen; notes whose tokens were
// read.
class CountedReads : public Dataset {
 public:
  explicit CountedReads(const Dataset* rows) : rows_(rows) {}
  int64_t document_count() const override { return rows_->document_count(); }
  int64_t document_tokens(int64_t document) const override {
    return rows_->document_tokens(document);
  }
  int64_t document_trained_tokens(int64_t document) const override {
    return rows_->document_trained_tokens(document);
  }
  void append_document(int64_t document, Ids& tokens, Ids& targets) const override {
    read_.insert(document);
    rows_->append_document(document, tokens, targets);
  }
  bool is_desirable(int64_t document) const override { return document % 2 == 0; }
  uint64_t fingerprint() const override { return rows_->fingerprint(); }
  std::set<int64_t> take_read() const { return std::exchange(read_, {}); }

 private:
  const Dataset* rows_;
  mutable std::set<int64_t> read_;
};

// A rank reads the tokens of its own micro-batches alone. It has the whole step's counts and mean
// of chosen tokens, and keys of dropout as if it had made every micro-batch.
TEST(Batch, ARankReadsItsOwnMicroBatchesAlone) {
  const InMemoryDataset rows = documents_of_lengths(random_lengths(50, 40, 3));
  const CountedReads dataset(&rows);
  const SequenceTable table =
      make_sequences(rows, {.packing = true, .max_tokens = 40, .shuffle_seed = 1});
  const Sampler sampler({.seed = 5, .sequences = table.sequence_count(), .shuffle = true});
  const StepSamples samples{
      .first_sample = 20, .sequences = 13, .micro_batch = 2, .dropout_seed = 9};
  const StepBatches whole = make_step_batches(dataset, table, sampler, samples);
  const std::set<int64_t> all = dataset.take_read();
  ASSERT_EQ(whole.micro_batch_count, 7);
  int64_t answers = 0, trained = 0;
  for (const Batch& batch : whole.micro_batches) {
    for (const int64_t document : batch.documents()) {
      if (!dataset.is_desirable(document)) continue;
      answers += 1;
      trained += dataset.document_trained_tokens(document);
    }
  }
  ASSERT_GT(answers, 0);
  const double mean = static_cast<double>(trained) / static_cast<double>(answers);
  for (const int32_t ranks : {2, 3, 8}) {
    std::set<int64_t> joined;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const StepBatches own =
          make_step_batches(dataset, table, sampler, samples, {Rank(rank), ranks});
      EXPECT_EQ(own.micro_batch_count, whole.micro_batch_count);
      EXPECT_EQ(own.sequences, whole.sequences);
      EXPECT_EQ(own.documents, whole.documents);
      EXPECT_EQ(own.tokens, whole.tokens);
      EXPECT_EQ(own.trained_tokens, whole.trained_tokens);
      EXPECT_EQ(own.weight, whole.weight);
      std::set<int64_t> documents;
      for (size_t i = 0; i < own.micro_batches.size(); ++i) {
        const Batch& batch = own.micro_batches[i];
        const Batch& same = whole.micro_batches.at(static_cast<size_t>(rank + i * ranks));
        EXPECT_EQ(batch.tokens(), same.tokens());
        EXPECT_EQ(batch.columns.get<kChosenTokensColumn>(), std::vector<double>{mean});
        EXPECT_EQ(batch.columns.get<kDropoutKeyColumn>(), same.columns.get<kDropoutKeyColumn>());
        documents.insert(batch.documents().begin(), batch.documents().end());
      }
      EXPECT_EQ(dataset.take_read(), documents);
      joined.merge(documents);
    }
    EXPECT_EQ(joined, all);
  }
}

// Without a seed of dropout, and in evaluation, there are no keys.
TEST(Batch, HasNoKeysWithoutDropout) {
  const InMemoryDataset dataset = documents_of_lengths(Ids{3, 2, 4});
  const SequenceTable table = make_sequences(dataset, {.packing = false, .max_tokens = 8});
  const Sampler sampler({.seed = 1, .sequences = 3, .shuffle = true});
  const StepBatches step = make_step_batches(dataset, table, sampler,
                                             {.first_sample = 0, .sequences = 3, .micro_batch = 3});
  EXPECT_TRUE(step.micro_batches.at(0).columns.get<kDropoutKeyColumn>().empty());
  EXPECT_TRUE(make_eval_batches(dataset, table, 0, 3)
                  .micro_batches.at(0)
                  .columns.get<kDropoutKeyColumn>()
                  .empty());
}

// Evaluation takes every sequence once, in order, up to a limit.
TEST(Batch, EvaluationTakesSequencesInOrderOnceAndUpToALimit) {
  const Ids lengths = {3, 2, 4, 2, 2};
  const InMemoryDataset dataset = documents_of_lengths(lengths);
  const SequenceTable table = make_sequences(dataset, {.packing = false, .max_tokens = 8});
  const StepBatches all = make_eval_batches(dataset, table, 0, 2);
  EXPECT_EQ(all.sequences, 5);
  EXPECT_EQ(all.tokens, 13);
  EXPECT_EQ(all.micro_batches.size(), 3u);
  const StepBatches some = make_eval_batches(dataset, table, 2, 2);
  EXPECT_EQ(some.micro_batches.at(0).tokens(), (Ids{0, 1, 2, 1000, 1001}));
  EXPECT_EQ(some.sequences, 2);
  EXPECT_EQ(make_eval_batches(dataset, table, 50, 2).sequences, 5);
}

}  // namespace
}  // namespace longshore
