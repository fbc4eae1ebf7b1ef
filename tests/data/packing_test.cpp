#include "data/tokens/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "data/tokens/sampler.h"
#include "tests/data/memory_documents.h"

namespace longshore {
namespace {

std::vector<int64_t> all_documents(const SequenceTable& table) {
  std::vector<int64_t> documents;
  for (int64_t s = 0; s < table.sequence_count(); ++s) {
    const auto some = table.documents_of(s);
    documents.insert(documents.end(), some.begin(), some.end());
  }
  return documents;
}

int64_t tokens_of(const Dataset& dataset, const SequenceTable& table, int64_t sequence) {
  int64_t tokens = 0;
  for (const int64_t document : table.documents_of(sequence)) {
    tokens += dataset.document_tokens(document);
  }
  return tokens;
}

// Every document is packed into exactly one sequence, and no sequence exceeds max_tokens.
TEST(Packing, PutsEveryDocumentIntoExactlyOneSequenceThatHoldsIt) {
  constexpr int64_t kMaxTokens = 128;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const int64_t count = 1 + 37 * static_cast<int64_t>(seed);
    const InMemoryDataset dataset = documents_of_lengths(random_lengths(count, kMaxTokens, seed));
    for (const bool shuffle : {false, true}) {
      PackingOptions options{.packing = true, .max_tokens = kMaxTokens};
      if (shuffle) options.shuffle_seed = seed;
      const SequenceTable table = make_sequences(dataset, options);
      std::vector<int64_t> documents = all_documents(table);
      std::sort(documents.begin(), documents.end());
      std::vector<int64_t> expected(static_cast<size_t>(count));
      std::iota(expected.begin(), expected.end(), int64_t{0});
      ASSERT_EQ(documents, expected) << seed;
      for (int64_t s = 0; s < table.sequence_count(); ++s) {
        ASSERT_LE(tokens_of(dataset, table, s), kMaxTokens) << seed;
      }
    }
  }
}

// Packing fills sequences of 20,000 random documents to at least 97 percent.
TEST(Packing, FillsSequencesOfManyShortDocumentsTo97Percent) {
  constexpr int64_t kMaxTokens = 1024;
  const InMemoryDataset dataset = documents_of_lengths(random_lengths(20'000, kMaxTokens, 5));
  const SequenceTable table =
      make_sequences(dataset, {.packing = true, .max_tokens = kMaxTokens, .shuffle_seed = 1});
  int64_t tokens = 0;
  for (int64_t s = 0; s < table.sequence_count(); ++s) tokens += tokens_of(dataset, table, s);
  EXPECT_GE(static_cast<double>(tokens),
            0.97 * static_cast<double>(table.sequence_count() * kMaxTokens));
}

// A document goes into the open sequence that it fills best.
TEST(Packing, ChoosesTheSequenceThatADocumentFillsBest) {
  // The documents of 7 and 6 tokens leave 3 and 4 free; the document of 3 fills the first.
  const std::vector<int64_t> lengths = {7, 6, 3};
  const InMemoryDataset dataset = documents_of_lengths(lengths);
  const SequenceTable table = make_sequences(dataset, {.packing = true, .max_tokens = 10});
  ASSERT_EQ(table.sequence_count(), 2);
  EXPECT_TRUE(std::ranges::equal(table.documents_of(0), std::vector<int64_t>{0, 2}));
  EXPECT_TRUE(std::ranges::equal(table.documents_of(1), std::vector<int64_t>{1}));
}

// Without shuffling, packed documents stay in file order.
TEST(Packing, KeepsFileOrderWithoutShuffling) {
  const InMemoryDataset dataset = documents_of_lengths(random_lengths(500, 64, 2));
  const SequenceTable table = make_sequences(dataset, {.packing = true, .max_tokens = 64});
  int64_t first_before = -1;
  for (int64_t s = 0; s < table.sequence_count(); ++s) {
    const auto documents = table.documents_of(s);
    EXPECT_TRUE(std::is_sorted(documents.begin(), documents.end()));
    EXPECT_GT(documents.front(), first_before);
    first_before = documents.front();
  }
}

// The packing depends on nothing but the seed.
TEST(Packing, DependsOnTheSeedAlone) {
  const InMemoryDataset dataset = documents_of_lengths(random_lengths(300, 64, 2));
  const auto packed = [&](std::optional<uint64_t> seed) {
    return all_documents(
        make_sequences(dataset, {.packing = true, .max_tokens = 64, .shuffle_seed = seed}));
  };
  EXPECT_EQ(packed(4), packed(4));
  EXPECT_NE(packed(4), packed(5));
}

// Goal: the order of packing has its own stream of random numbers, apart from that of the samples.
TEST(Packing, TakesDocumentsInTheOrderOfItsOwnPermutation) {
  constexpr int64_t kDocuments = 50;
  const InMemoryDataset dataset = documents_of_lengths(std::vector<int64_t>(kDocuments, 8));
  const SequenceTable table =
      make_sequences(dataset, {.packing = true, .max_tokens = 8, .shuffle_seed = 6});
  const IndexPermutation order(kDocuments, 6, IndexPermutation::Purpose::kPackingOrder, 0);
  ASSERT_EQ(table.sequence_count(), kDocuments);
  for (int64_t s = 0; s < kDocuments; ++s) EXPECT_EQ(table.documents_of(s).front(), order(s));
}

// Goal: documents are packed in windows, and no document is lost between two windows.
TEST(Packing, LosesNoDocumentBetweenWindows) {
  constexpr int64_t kDocuments = 20'000;
  const InMemoryDataset dataset = documents_of_lengths(random_lengths(kDocuments, 16, 9));
  std::vector<int64_t> documents =
      all_documents(make_sequences(dataset, {.packing = true, .max_tokens = 16}));
  std::sort(documents.begin(), documents.end());
  ASSERT_EQ(documents.size(), static_cast<size_t>(kDocuments));
  for (size_t i = 0; i < documents.size(); ++i) {
    ASSERT_EQ(documents[i], static_cast<int64_t>(i));
  }
}

// Without packing every document is a sequence of its own.
TEST(Packing, SwitchedOffMakesEveryDocumentASequence) {
  const std::vector<int64_t> lengths = {7, 2, 5};
  const InMemoryDataset dataset = documents_of_lengths(lengths);
  const SequenceTable table =
      make_sequences(dataset, {.packing = false, .max_tokens = 100, .shuffle_seed = 3});
  EXPECT_EQ(all_documents(table), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(table.sequence_count(), 3);
}

}  // namespace
}  // namespace longshore
