// Numbers of tokens: weights in rows, in prepared files and in batches.
#include <cmath>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "base/file.h"
#include "data/tokens/batch.h"
#include "tests/data/prepare_fixture.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

using Weights = std::vector<float>;

class Columns : public PrepareFixture {
 protected:
  // Returns the weights of a document's trained tokens; empty if the data has none.
  static Weights weights_of(const Dataset& dataset, int64_t document) {
    const SequenceTable table = make_sequences(dataset, {.packing = false, .max_tokens = 64});
    return make_token_batch(dataset, table, Ids{document}).columns[kWeightColumn];
  }
};

// A weight belongs to the token that is predicted. The row's weight multiplies those of its tokens;
// a row without any has 1, before and behind the first row that has some.
TEST_F(Columns, WeightsOfRowsAndTokensAreMultiplied) {
  const LoadedData data = load(
      "{\"input_ids\": [5, 6, 7]}\n"
      "{\"input_ids\": [5, 6, 7, 8], \"weights\": [9, 0.5, 2, 0.25]}\n"
      "{\"input_ids\": [5, 6, 7], \"weight\": 3}\n"
      "{\"input_ids\": [5, 6, 7], \"weights\": [1, 0.5, 2], \"weight\": 4}\n"
      "{\"input_ids\": [5, 6, 7]}\n");
  EXPECT_EQ(weights_of(*data.dataset, 0), (Weights{1, 1}));
  EXPECT_EQ(weights_of(*data.dataset, 1), (Weights{0.5, 2, 0.25}));
  EXPECT_EQ(weights_of(*data.dataset, 2), (Weights{3, 3}));
  EXPECT_EQ(weights_of(*data.dataset, 3), (Weights{2, 8}));
  EXPECT_EQ(weights_of(*data.dataset, 4), (Weights{1, 1}));
  EXPECT_TRUE(data.report.files.at(0).unread.empty());
}

// With labels a row may give a weight for each token, or for each token with a loss. The weight of
// a token without a loss counts for nothing.
TEST_F(Columns, WeightsMayBeThoseOfTrainedTokensAlone) {
  const LoadedData data = load(
      "{\"input_ids\": [5, 6, 7, 8], \"labels\": [-100, -100, 7, 8], \"weights\": [0.5, 2]}\n"
      "{\"input_ids\": [5, 6, 7, 8], \"labels\": [-100, -100, 7, 8], "
      "\"weights\": [null, -1, 0.5, 2]}\n");
  EXPECT_EQ(weights_of(*data.dataset, 0), (Weights{0.5, 2}));
  EXPECT_EQ(weights_of(*data.dataset, 1), (Weights{0.5, 2}));
}

// Rows of every format may have a weight, and data.keys gives it another name.
TEST_F(Columns, RowsOfEveryFormatMayHaveAWeight) {
  options_.data.max_tokens = 64;
  for (const std::string row :
       {"{\"text\": \"ab\", \"weight\": 0.5}",
        "{\"prompt\": \"a\", \"completion\": \"b\", \"weight\": 0.5}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
        "{\"role\": \"assistant\", \"content\": \"b\"}], \"weight\": 0.5}",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], "
        "\"completion\": [{\"role\": \"assistant\", \"content\": \"b\"}], \"weight\": 0.5}"}) {
    const LoadedData data = load(row);
    EXPECT_EQ(weights_of(*data.dataset, 0), (Weights{0.5, 0.5})) << row;
    EXPECT_TRUE(data.report.files.at(0).unread.empty()) << row;
  }
  options_.data.keys = {"weight = \"score\""};
  EXPECT_EQ(weights_of(*load("{\"text\": \"ab\", \"score\": 2, \"weight\": 7}").dataset, 0),
            (Weights{2, 2}));
}

// An answer of a conversation may have any weight. Every token of the answer has it, also its end.
TEST_F(Columns, AnswersOfAConversationHaveTheirWeights) {
  options_.data.max_tokens = 128;
  const LoadedData data = load(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"weight\": 0.3}, "
      "{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.25}, "
      "{\"role\": \"user\", \"content\": \"r\"}, {\"role\": \"assistant\", \"content\": \"bc\"}, "
      "{\"role\": \"user\", \"content\": \"s\"}, "
      "{\"role\": \"assistant\", \"content\": \"d\", \"weight\": 0}], \"weight\": 2}");
  EXPECT_EQ(learned(data, 0), "a</s>bc</s>");
  EXPECT_EQ(weights_of(*data.dataset, 0), (Weights{0.5, 0.5, 2, 2, 2}));
}

// A weight that is no finite number from 0 on is a bad row with its place. NaN counts as null.
TEST_F(Columns, BadWeightsAreBadRows) {
  const std::string ids = "{\"input_ids\": [1, 2, 3], ";
  for (const auto& [row, message] : std::vector<std::pair<std::string, std::string>>{
           {"\"weight\": -0.5}", "weight: -0.5 is negative"},
           {"\"weight\": NaN}", "weight: expected a number, found null"},
           {"\"weight\": -Infinity}", "weight: expected a number, found null"},
           {"\"weight\": \"1\"}", "weight: expected a number, found a string"},
           {"\"weight\": 1e39}", "weight: 1e+39 is no finite number of 32 bits"},
           {"\"weights\": 2}", "weights: expected an array of numbers, found an integer"},
           {"\"weights\": null}", "weights: expected an array of numbers, found null"},
           {"\"weights\": [1]}", "weights: 1 of them for 3 input_ids, 2 with a loss"},
           {"\"weights\": [1, 2, 3, 4]}", "weights: 4 of them for 3 input_ids, 2 with a loss"},
           {"\"weights\": [1, -2, 3]}", "weights[1]: -2 is negative"},
           {"\"weights\": [1, NaN]}", "weights[1]: expected a number, found null"},
           {"\"weights\": [1e30, 1], \"weight\": 1e30}", "weight: its product with the weight"},
           {"\"weights\": [5, 0, 0]}", "no token is trained"}}) {
    const std::string text = refusal("{\"input_ids\": [1, 2]}\n" + ids + row + "\n");
    EXPECT_EQ(text.find("rows.jsonl:2: " + message), 0u) << row << ": " << text;
  }
}

// A row with the weight 0 is as if it were absent; a token with the weight 0 has no loss.
TEST_F(Columns, WhatHasTheWeightZeroIsLeftOut) {
  const LoadedData data = load(
      "{\"input_ids\": [5, 6, 7], \"weight\": 0}\n{\"input_ids\": [8, 9], \"weight\": 2}\n"
      "{\"input_ids\": [5, 6, 7, 8], \"weights\": [1, 1, 0, 3]}\n");
  ASSERT_EQ(data.dataset->document_count(), 2);
  EXPECT_EQ(tokens_of(data, 0), (Ids{8, 9}));
  EXPECT_EQ(targets_of(data, 1), (Ids{6, -100, 8, -100}));
  EXPECT_EQ(weights_of(*data.dataset, 1), (Weights{1, 3}));
  EXPECT_EQ(data.report.total().rows, 3);
  EXPECT_EQ(data.report.total().weightless, 1);
  EXPECT_EQ(data.report.total().bad_rows, 0);
  EXPECT_NE(data.report.lines().at(0).find("1 left out with the weight 0"), std::string::npos);
}

// Pieces of a long row keep the weights of their tokens.
TEST_F(Columns, PiecesOfARowKeepTheirWeights) {
  options_.data.max_tokens = 3;
  options_.data.overlength = DataSection::Overlength::kSplit;
  const std::string row = "{\"input_ids\": [1, 2, 3, 4, 5], \"weights\": [0.5, 2, 3, 4, 5]}\n";
  const LoadedData split = load(row);
  ASSERT_EQ(split.dataset->document_count(), 2);
  EXPECT_EQ(weights_of(*split.dataset, 0), (Weights{2, 3}));
  EXPECT_EQ(weights_of(*split.dataset, 1), (Weights{5}));
  options_.data.overlength = DataSection::Overlength::kTruncate;
  EXPECT_EQ(weights_of(*load(row).dataset, 0), (Weights{2, 3}));
}

// Answers of pairs are compared, not weighted.
TEST_F(Columns, AnswersOfPairsHaveNoWeights) {
  options_.data.max_tokens = 64;
  EXPECT_EQ(refusal("{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], "
                    "\"chosen\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}], "
                    "\"rejected\": [{\"role\": \"assistant\", \"content\": \"b\"}]}"),
            "rows.jsonl:1: a judged answer has no weight of its own; leave out the member "
            "\"weight\"");
}

// Files without weights keep the version that earlier programs read; together with a file that has
// weights their documents have 1.
TEST_F(Columns, FilesWithoutWeightsStayAsTheyWere) {
  options_.files = {files_.write("plain.jsonl", "{\"input_ids\": [1, 2, 3]}\n"),
                    files_.write("weighted.jsonl", "{\"input_ids\": [1, 2], \"weight\": 0.5}\n")};
  const PreparedData prepared = prepare_or_open(options_);
  EXPECT_EQ(read_whole_file(prepared.paths.at(0), kMiB).at(8), 3);
  EXPECT_EQ(read_whole_file(prepared.paths.at(1), kMiB).at(8), 4);
  EXPECT_FALSE(prepared.files.at(0)->has_column(kWeightColumn));
  EXPECT_TRUE(prepared.files.at(1)->has_column(kWeightColumn));
  const LoadedData both = load();
  EXPECT_EQ(weights_of(*both.dataset, 0), (Weights{1, 1}));
  EXPECT_EQ(weights_of(*both.dataset, 1), (Weights{0.5}));
  EXPECT_TRUE(weights_of(*prepared.files.at(0), 0).empty());
}

// Returns rows of which only those behind the first block of 4096 have weights.
std::string many_rows() {
  std::string rows;
  for (int i = 0; i < 9000; ++i) {
    rows += "{\"input_ids\": [" + std::to_string(i % 250) + ", 7, 8, 9]";
    if (i >= 5000) rows += ", \"weight\": " + std::to_string(1 + i % 5);
    rows += "}\n";
  }
  return rows;
}

// The bytes are the same with any number of threads and after a kill before, and behind, the first
// row with a weight.
TEST_F(Columns, WeightsSurviveKillsAndThreads) {
  options_.files = {files_.write("rows.jsonl", many_rows())};
  options_.threads = 1;
  const std::string path = prepare_or_open(options_).paths.at(0);
  const std::string expected = read_whole_file(path, kGiB);
  const TokenFile file(path);
  EXPECT_EQ(weights_of(file, 4095), (Weights{1, 1, 1}));
  EXPECT_EQ(weights_of(file, 5001), (Weights{2, 2, 2}));
  EXPECT_EQ(weights_of(file, 8999), (Weights{5, 5, 5}));
  options_.save_every_bytes = 1;  // behind each block
  for (const int64_t calls : {int64_t{2}, int64_t{3}, int64_t{4}}) {
    std::filesystem::remove(path);
    options_.threads = calls;
    int64_t seen = 0;
    uint64_t written = 0;
    options_.on_progress = [&](const PrepareProgress& progress) {
      if (progress.tokens == written) return;
      written = progress.tokens;
      if (++seen == calls - 1) throw std::runtime_error("killed");
    };
    try {
      prepare_or_open(options_);
    } catch (const std::runtime_error&) {
    }
    options_.on_progress = {};
    prepare_or_open(options_);
    EXPECT_TRUE(read_whole_file(path, kGiB) == expected) << calls;
  }
}

// Any changed byte of a file with weights is found before it is used.
TEST_F(Columns, ADamagedWeightIsADataError) {
  options_.files = {files_.write("rows.jsonl", many_rows())};
  const std::string path = prepare_or_open(options_).paths.at(0);
  const std::string whole = read_whole_file(path, kGiB);
  const TokenFileHeader header = TokenFile(path).header();
  ASSERT_GT(header.columns_offset, header.mask_offset);
  ASSERT_EQ(header.columns, 1u);
  for (const uint64_t at : {uint64_t{136}, uint64_t{144}, uint64_t{152}, header.columns_offset + 7,
                            header.columns_offset + 4 * header.tokens - 1}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    const std::string copy = files_.write("damaged.tok", damaged);
    EXPECT_THROW(
        {
          const TokenFile file(copy);
          for (int64_t d = 0; d < file.document_count(); ++d) file.column_of(d, kWeightColumn);
        },
        DataError)
        << at;
  }
}

// A column that the run's loss needs is read from rows of any format: a number for the whole row,
// or one for each token or for each with a loss. data.keys gives its members other names.
TEST_F(Columns, RowsOfAnyFormatMayHaveTheColumnOfALoss) {
  options_.data.max_tokens = 64;
  options_.columns = {kAdvantageColumn};
  const auto advantages_of = [](const LoadedData& data) {
    const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 64});
    return make_token_batch(*data.dataset, table, Ids{0}).columns[kAdvantageColumn];
  };
  const std::string ids = "{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, 7], \"advantage";
  for (const auto& [row, expected] : std::vector<std::pair<std::string, Weights>>{
           {ids + "\": -2}", {-2}},
           {ids + "s\": [null, null, 3]}", {3}},
           {ids + "s\": [4], \"weight\": 2}", {4}},
           {"{\"text\": \"ab\", \"advantage\": 0.5}", {0.5, 0.5}},
           {"{\"prompt\": \"a\", \"completion\": \"b\", \"advantage\": 1}", {1, 1}},
           {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
            "\"content\": \"b\"}], \"advantage\": 3}",
            {3, 3}},
           {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"advantage\": 7}",
            {7, 7}}}) {
    const LoadedData data = load(row);
    EXPECT_EQ(advantages_of(data), expected) << row;
    EXPECT_TRUE(data.report.files.at(0).unread.empty()) << row;
  }
  options_.data.keys = {"advantage = \"price\""};
  EXPECT_EQ(advantages_of(load("{\"text\": \"ab\", \"price\": 2}")), (Weights{2, 2}));
}

// A loss may also need the columns of a teacher, which have several values for each token.
TEST_F(Columns, RowsOfAnyFormatMayHaveATeacher) {
  options_.data.max_tokens = 64;
  options_.data.format = DataSection::Format::kTokens;
  options_.teacher_tokens = 2;
  options_.columns = {kTeacherIdColumn, kTeacherLogpColumn};
  const LoadedData data = load(
      "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, 7], \"teacher_ids\": [[6, 9], [7]], "
      "\"teacher_logps\": [[-0.5, -1], [-0.25]]}\n");
  EXPECT_EQ(data.report.files.at(0).format, "tokens");
  EXPECT_TRUE(data.report.files.at(0).unread.empty());
  const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 64});
  const Batch batch = make_token_batch(*data.dataset, table, Ids{0});
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(batch.columns[kTeacherIdColumn], (Weights{6, 9, 7, 7}));
  EXPECT_EQ(batch.columns[kTeacherLogpColumn], (Weights{-0.5, -1, -0.25, none}));
}

// Arrays with an element for each token with a loss have those of tokens that weights of 0 leave
// out, in the format of a teacher's rows and in any other.
TEST_F(Columns, WeightsOfZeroRemoveNoElementsOfArrays) {
  options_.data.max_tokens = 64;
  options_.teacher_tokens = 2;
  const std::string row =
      "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, 7], \"weights\": [0, 3], "
      "\"advantages\": [4, 5], \"teacher_ids\": [[6, 9], [7]], "
      "\"teacher_logps\": [[-0.5, -1], [-0.25]]}\n";
  const auto batch_of = [&](DataSection::Format format, std::vector<ColumnId> columns) {
    options_.data.format = format;
    options_.columns = std::move(columns);
    const LoadedData data = load(row);
    const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 64});
    return make_token_batch(*data.dataset, table, Ids{0});
  };
  const Batch distill = batch_of(DataSection::Format::kDistill, {});
  const Batch tokens =
      batch_of(DataSection::Format::kTokens, {kTeacherIdColumn, kTeacherLogpColumn});
  for (const Batch* batch : {&distill, &tokens}) {
    EXPECT_EQ(batch->trained_tokens, 1);
    EXPECT_EQ(batch->columns[kTeacherIdColumn], (Weights{7, 7}));
    EXPECT_EQ(batch->columns[kWeightColumn], (Weights{3}));
  }
  const Batch advantages = batch_of(DataSection::Format::kTokens, {kAdvantageColumn});
  EXPECT_EQ(advantages.columns[kAdvantageColumn], (Weights{5}));
}

// A row without the column, or with values that are none, is named by file and line; a .txt file
// has no rows. Without a loss that needs the column the same rows have none, also from the cache.
TEST_F(Columns, RowsWithoutTheColumnOfALossAreNamed) {
  const std::string good = "{\"input_ids\": [1, 2, 3], \"advantage\": 1}\n";
  EXPECT_FALSE(load(good).dataset->has_column(kAdvantageColumn));
  options_.columns = {kAdvantageColumn};
  EXPECT_TRUE(load(good).dataset->has_column(kAdvantageColumn));
  const std::string ids = good + "{\"input_ids\": [1, 2, 3]";
  for (const auto& [row, message] : std::vector<std::pair<std::string, std::string>>{
           {"}", "expected either a number \"advantage\" or an array \"advantages\", found none"},
           {", \"advantage\": 1e39}", "advantage: 1e+39 is no finite number of 32 bits"},
           {", \"advantages\": [1, NaN]}", "advantages[1]: expected a number, found null"},
           {", \"advantages\": [1, 2, 3, 4]}",
            "advantages: 4 of them for 3 input_ids, 2 with a loss"},
           {", \"advantages\": [\"1\", 2]}", "advantages[0]: expected a number, found a string"}}) {
    const std::string text = refusal(ids + row + "\n");
    EXPECT_EQ(text.find("rows.jsonl:2: " + message), 0u) << row << ": " << text;
  }
  EXPECT_EQ(refusal("ab", "plain.txt"),
            "plain.txt: a .txt file has no rows with \"advantages\", which train.loss needs; give "
            "JSONL");
}

// Rows of a policy have one advantage or one for each token, and old log-probabilities.
TEST_F(Columns, RowsOfAPolicyHaveAdvantagesAndOldLogps) {
  const LoadedData data = load(
      "{\"input_ids\": [5, 6, 7, 8], \"labels\": [-100, -100, 7, 8], \"advantage\": -1.5, "
      "\"old_logps\": [-0.5, -2]}\n"
      "{\"input_ids\": [5, 6, 7], \"advantages\": [9, 0, 2], \"old_logps\": [null, -1, 0]}\n");
  EXPECT_EQ(data.report.files.at(0).format, "policy");
  EXPECT_TRUE(data.report.files.at(0).unread.empty());
  const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 64});
  const Batch batch = make_token_batch(*data.dataset, table, Ids{1, 0});
  EXPECT_EQ(batch.trained_tokens, 4);
  EXPECT_EQ(batch.columns[kAdvantageColumn], (Weights{0, 2, -1.5, -1.5}));
  EXPECT_EQ(batch.columns[kOldLogpColumn], (Weights{-1, 0, -0.5, -2}));
  EXPECT_TRUE(batch.columns[kWeightColumn].empty());
}

// Faults of such rows are named.
TEST_F(Columns, BadRowsOfAPolicyAreNamed) {
  const std::string good =
      "{\"input_ids\": [1, 2], \"advantage\": 1, \"old_logps\": [-1]}\n{\"input_ids\": [1, 2]";
  for (const auto& [row, message] : std::vector<std::pair<std::string, std::string>>{
           {"}", "expected a key \"old_logps\", found input_ids"},
           {", \"old_logps\": [-1]}",
            "expected either a number \"advantage\" or an array \"advantages\", found none"},
           {", \"old_logps\": [-1], \"advantage\": 1, \"advantages\": [1]}",
            "expected either a number \"advantage\" or an array \"advantages\", found both"},
           {", \"old_logps\": [0.5], \"advantage\": 1}", "old_logps: holds a number above 0"},
           {", \"old_logps\": [-1, -2, -3], \"advantage\": 1}",
            "old_logps: 3 of them for 2 input_ids, 1 with a loss"},
           {", \"old_logps\": [-1], \"advantage\": \"1\"}",
            "advantage: expected a number, found a string"}}) {
    const std::string text = refusal(good + row + "\n");
    EXPECT_EQ(text.find("rows.jsonl:2: " + message), 0u) << row << ": " << text;
  }
}

// Rows with a teacher have up to top_k tokens for each token, or for each token with a loss. A
// token that has fewer repeats the first id without probability.
TEST_F(Columns, RowsHaveTheTokensOfATeacher) {
  options_.teacher_tokens = 2;
  const LoadedData data = load(
      "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, 7], \"weight\": 2, "
      "\"teacher_ids\": [[6, 9], [7]], \"teacher_logps\": [[-0.5, -1], [-0.25]]}\n"
      "{\"input_ids\": [5, 6], \"teacher_ids\": [null, [4]], \"teacher_logps\": [null, [0]]}\n");
  EXPECT_EQ(data.report.files.at(0).format, "distill");
  EXPECT_TRUE(data.report.files.at(0).unread.empty());
  const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 64});
  const Batch batch = make_token_batch(*data.dataset, table, Ids{1, 0});
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(batch.columns.teacher_tokens, 2u);
  EXPECT_EQ(batch.columns[kTeacherIdColumn], (Weights{4, 4, 6, 9, 7, 7}));
  EXPECT_EQ(batch.columns[kTeacherLogpColumn], (Weights{0, none, -0.5, -1, -0.25, none}));
  EXPECT_EQ(batch.columns[kWeightColumn], (Weights{1, 2, 2}));
}

// Lists of lists in a Parquet file are those of JSONL.
TEST_F(Columns, TablesHaveTheTokensOfATeacher) {
  options_.files = {test_data() + "/data/tables/teacher.parquet"};
  const LoadedData data = load();
  EXPECT_EQ(data.report.files.at(0).format, "distill");
  const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 64});
  const Batch batch = make_token_batch(*data.dataset, table, Ids{0, 1});
  ASSERT_EQ(batch.columns.teacher_tokens, 16u);
  const Weights& ids = batch.columns[kTeacherIdColumn];
  const Weights& logps = batch.columns[kTeacherLogpColumn];
  ASSERT_EQ(ids.size(), 48u);
  EXPECT_EQ((Weights{ids[0], ids[1], ids[16], ids[32]}), (Weights{6, 9, 7, 4}));
  EXPECT_EQ((Weights{logps[0], logps[1], logps[16], logps[32]}), (Weights{-0.5, -1, -0.25, 0}));
}

// Pieces of a long row keep the teacher's tokens. Probabilities of a sum above 1 are divided by it.
TEST_F(Columns, PiecesOfARowKeepTheirTeacher) {
  options_.teacher_tokens = 2;
  options_.data.max_tokens = 2;
  options_.data.overlength = DataSection::Overlength::kSplit;
  const LoadedData data = load(
      "{\"input_ids\": [1, 2, 3, 4], \"teacher_ids\": [[5], [6], [7, 8]], "
      "\"teacher_logps\": [[-1], [-2], [0, -5]]}\n");
  ASSERT_EQ(data.dataset->document_count(), 2);
  const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 64});
  const Batch batch = make_token_batch(*data.dataset, table, Ids{1, 0});
  EXPECT_EQ(batch.columns[kTeacherIdColumn], (Weights{7, 8, 5, 5}));
  EXPECT_NEAR(batch.columns[kTeacherLogpColumn].at(0), -std::log1p(std::exp(-5.0)), 1e-6);
}

// Files with a teacher have a version of their own, and a damaged width is found.
TEST_F(Columns, FilesWithATeacherHaveAVersionOfTheirOwn) {
  options_.files = {files_.write("rows.jsonl",
                                 "{\"input_ids\": [1, 2], \"teacher_ids\": [[3, 4]], "
                                 "\"teacher_logps\": [[-1, -2]]}\n")};
  const std::string path = prepare_or_open(options_).paths.at(0);
  std::string bytes = read_whole_file(path, kMiB);
  EXPECT_EQ(bytes.at(8), 5);
  EXPECT_EQ(TokenFile(path).header().teacher_tokens, 16u);
  options_.teacher_tokens = 2;
  const std::string narrow = prepare_or_open(options_).paths.at(0);
  EXPECT_NE(narrow, path);
  EXPECT_EQ(TokenFile(narrow).header().teacher_tokens, 2u);
  bytes[152] ^= 1;
  EXPECT_THROW(TokenFile(files_.write("damaged.tok", bytes)), DataError);
}

// Faults of such rows are named.
TEST_F(Columns, BadTokensOfATeacherAreNamed) {
  options_.teacher_tokens = 2;
  const std::string good =
      "{\"input_ids\": [1, 2], \"teacher_ids\": [[3]], \"teacher_logps\": [[-1]]}\n"
      "{\"input_ids\": [1, 2], \"teacher_ids\": ";
  for (const auto& [row, message] : std::vector<std::pair<std::string, std::string>>{
           {"[[3]]}", "expected a key \"teacher_logps\", found input_ids, teacher_ids"},
           {"[[3]], \"teacher_logps\": [-1]}",
            "teacher_logps[0]: expected an array of 1 log-probabilities, one for each id, found "},
           {"[[3], [4], [5]], \"teacher_logps\": [[-1], [-1], [-1]]}",
            "teacher_ids: 3 of them for 2 input_ids, 1 with a loss"},
           {"[[3], [4]], \"teacher_logps\": [[-1]]}",
            "teacher_logps: expected an array of 2 arrays, as teacher_ids, found 1"},
           {"[[]], \"teacher_logps\": [[]]}", "teacher_ids[0]: the array is empty"},
           {"[[3, 4, 5]], \"teacher_logps\": [[-1, -2, -3]]}",
            "teacher_ids[0]: 3 tokens, more than distill.top_k = 2; raise it"},
           {"[[3, 3]], \"teacher_logps\": [[-1, -2]]}", "teacher_ids[0]: has the token 3 twice"},
           {"[[3, 999999]], \"teacher_logps\": [[-1, -2]]}",
            "teacher_ids[0][1]: 999999 is no token of the model"},
           {"[[3]], \"teacher_logps\": [[0.5]]}",
            "teacher_logps[0][0]: 0.5 is above 0, which is no log-probability"},
           {"[[3, 4]], \"teacher_logps\": [[-0.1, -0.1]]}",
            "teacher_logps[0]: the probabilities have a sum of 1.8"},
           {"[[3]], \"teacher_logps\": [[NaN]]}",
            "teacher_logps[0][0]: expected a number, found null"}}) {
    const std::string text = refusal(good + row + "\n");
    EXPECT_EQ(text.find("rows.jsonl:2: " + message), 0u) << row << ": " << text;
  }
}

// A step's divisor is the sum of its weights, of all micro-batches; without weights it is the
// number of trained tokens.
TEST_F(Columns, AStepKnowsTheSumOfItsWeights) {
  const auto weight_of = [&](const std::string& rows, int64_t micro_batch) {
    const LoadedData data = load(rows);
    const SequenceTable table = make_sequences(*data.dataset, {.packing = false, .max_tokens = 16});
    const double weight = make_eval_batches(*data.dataset, table, 0, micro_batch).weight;
    for (const int32_t rank : {0, 1}) {
      EXPECT_EQ(make_eval_batches(*data.dataset, table, 0, micro_batch, {Rank(rank), 2}).weight,
                weight)
          << "of all ranks";
    }
    return weight;
  };
  const std::string rows =
      "{\"input_ids\": [5, 6, 7], \"weight\": 0.5}\n{\"input_ids\": [5, 6, 7, 8]}\n"
      "{\"input_ids\": [5, 6], \"weight\": 3}\n";
  for (const int64_t micro_batch : {1, 2, 3}) EXPECT_EQ(weight_of(rows, micro_batch), 7.0);
  EXPECT_EQ(weight_of("{\"input_ids\": [5, 6, 7]}\n{\"input_ids\": [5, 6, 7, 8]}\n", 1), 5.0);
}

}  // namespace
}  // namespace longshore
