#include "tests/data/prepare_fixture.h"

namespace longshore {
namespace {

class Prepare : public PrepareFixture {};

// A row of text becomes its tokens with eos at the end; blank lines are skipped.
TEST_F(Prepare, ReadsTextRowsAndEndsThemWithEos) {
  const LoadedData data = load("{\"text\": \"aB\"}\n\n{\"id\": 3, \"text\": \"c</s>\"}\n");
  ASSERT_EQ(data.dataset->document_count(), 2);
  EXPECT_EQ(tokens_of(data, 0), (Ids{65, 34, 0}));
  EXPECT_EQ(targets_of(data, 0), (Ids{34, 0, -100}));
  EXPECT_EQ(tokens_of(data, 1), (Ids{67, 0}));
  const FileReport total = data.report.total();
  EXPECT_EQ(total.rows, 2);
  EXPECT_EQ(total.tokens, 5);
  EXPECT_EQ(total.trained_tokens, 3);
  EXPECT_NE(data.report.lines().at(0).find("format text (auto), 2 rows, 2 documents"),
            std::string::npos)
      << data.report.lines().at(0);
}

// With data.add_eos = false no eos is added.
TEST_F(Prepare, LeavesEosOutWhenAskedTo) {
  options_.data.add_eos = false;
  EXPECT_EQ(tokens_of(load("{\"text\": \"ab\"}"), 0), (Ids{65, 66}));
}

// A .txt file is read as one document.
TEST_F(Prepare, ReadsATextFileAsOneDocument) {
  const LoadedData data = load(
      "\xEF\xBB\xBF"
      "ab\r\ncd",
      "a.TXT");
  EXPECT_EQ(letters().decode(std::vector<TokenId>{65, 66}), "ab");
  const Ids tokens = tokens_of(data, 0);
  EXPECT_EQ(letters().decode(std::vector<TokenId>(tokens.begin(), tokens.end())), "ab\ncd");
  EXPECT_EQ(data.report.files.at(0).format, "text");
}

// data.max_rows reads the first rows: blank lines are no rows, bad rows are. What follows may be
// damaged. The count is of each file, and a limit above the number of rows changes no token.
TEST_F(Prepare, ReadsTheFirstRowsOfEachFile) {
  options_.data.max_rows = 2;
  const std::string rows = "\n{\"text\": \"a\"}\n \n{\"text\": \"b\"}\n";
  options_.files = {files_.write("first.jsonl", rows + "{\"text\": \"c\"}\n{damaged\n"),
                    files_.write("array.json", "[{\"text\": \"d\"}, {\"text\": \"e\"}, 7]"),
                    files_.write("short.jsonl", "{\"text\": \"f\"}\n")};
  const LoadedData data = load();
  ASSERT_EQ(data.dataset->document_count(), 5);
  EXPECT_EQ(text_of(tokens_of(data, 1)) + text_of(tokens_of(data, 3)), "b</s>e</s>");
  EXPECT_EQ(data.report.total().rows, 5);
  options_.files.resize(1);
  const uint64_t two = load().dataset->fingerprint();
  options_.data.max_rows = 0;
  EXPECT_EQ(load(rows).dataset->fingerprint(), two);
  options_.data.max_rows = 2;
  options_.data.bad_rows = DataSection::BadRows::kSkip;
  const LoadedData bad = load("{damaged\n" + rows);
  EXPECT_EQ(bad.dataset->document_count(), 1);
  EXPECT_EQ(bad.report.total().rows, 2);
}

// Rows of token ids are read with and without labels.
TEST_F(Prepare, ReadsTokenRowsWithAndWithoutLabels) {
  options_.tokenizer = nullptr;
  const LoadedData data = load(
      "{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, 256]}\n"
      "{\"input_ids\": [5, 6], \"labels\": null, \"attention_mask\": [1, 1]}\n");
  EXPECT_EQ(tokens_of(data, 0), (Ids{5, 6, 7}));
  EXPECT_EQ(targets_of(data, 0), (Ids{-100, 256, -100}));
  EXPECT_EQ(targets_of(data, 1), (Ids{6, -100}));
  EXPECT_EQ(data.report.files.at(0).format, "tokens");
}

// Several files are read in the given order, each in its own format.
TEST_F(Prepare, ReadsSeveralFilesInTheGivenOrderEachInItsFormat) {
  options_.files = {files_.write("b.jsonl", "{\"text\": \"b\"}\n"),
                    files_.write("a.jsonl", "{\"input_ids\": [9, 8]}\n")};
  const LoadedData data = load();
  EXPECT_EQ(tokens_of(data, 0), (Ids{66, 0}));
  EXPECT_EQ(tokens_of(data, 1), (Ids{9, 8}));
  EXPECT_EQ(data.report.lines().size(), 2u);
}

struct BadRow {
  const char* what;
  std::string row;
  std::string message;  // the text after "rows.jsonl:2: "
};

std::vector<BadRow> bad_rows() {
  return {
      {"no JSON", "text", "not JSON: syntax error while parsing value"},
      {"bad UTF-8", "{\"text\": \"\xFF\"}", "not JSON: "},
      {"NUL byte", std::string("{\"text\": \"a\0b\"}", 15), "not JSON: a NUL byte"},
      {"escaped NUL", "{\"text\": \"a\\u0000b\"}", "text: holds a NUL character"},
      {"lone surrogate", "{\"text\": \"\\ud800\"}", "not JSON: "},
      {"key twice", "{\"text\": \"a\", \"text\": \"b\"}", "key \"text\" occurs twice"},
      {"two values", "{\"text\": \"a\"} {}", "not JSON: "},
      {"array", "[1, 2]", "expected an object, found an array"},
      {"string", "\"a\"", "expected an object, found a string"},
      {"other format", "{\"input_ids\": [1, 2]}", "expected a key \"text\", found input_ids"},
      {"no keys", "{}", "expected a key \"text\", found none"},
      {"null text", "{\"text\": null}", "text: expected a string, found null"},
      {"number text", "{\"text\": 3}", "text: expected a string, found an integer"},
      {"empty text", "{\"text\": \"\"}", "text: the string is empty"},
      {"nothing to learn", "{\"text\": \"</s>\"}", "no token is trained"},
      {"deep", "{\"text\": " + std::string(100, '[') + std::string(100, ']') + "}",
       "nested deeper than 64"},
      {"too long a line", "{\"text\": \"" + std::string(17 << 20, 'a') + "\"}",
       "the line is longer than the limit of 16.0 MiB"},
  };
}

std::vector<BadRow> bad_token_rows() {
  return {
      {"no ids", "{\"labels\": [1]}", "expected a key \"input_ids\", found labels"},
      {"ids no array", "{\"input_ids\": \"1 2\"}",
       "input_ids: expected an array of integers, found a string"},
      {"empty", "{\"input_ids\": []}", "input_ids: the array is empty"},
      {"real id", "{\"input_ids\": [1, 2.0]}",
       "input_ids[1]: expected an integer, found a real number"},
      {"nested", "{\"input_ids\": [[1, 2]]}", "input_ids[0]: expected an integer, found an array"},
      {"beyond", "{\"input_ids\": [1, 257]}",
       "input_ids[1]: 257 is no token of the model, whose vocabulary has 257"},
      {"negative", "{\"input_ids\": [-1, 2]}", "input_ids[0]: -1 is no token of the model"},
      {"ignored id", "{\"input_ids\": [-100, 2]}", "input_ids[0]: -100 is no token of the model"},
      {"huge", "{\"input_ids\": [18446744073709551615, 2]}",
       "input_ids[0]: 18446744073709551615 is no token of the model"},
      {"label beyond", "{\"input_ids\": [1, 2], \"labels\": [1, 300]}",
       "labels[1]: 300 is no token of the model"},
      {"fewer labels", "{\"input_ids\": [1, 2], \"labels\": [1]}",
       "labels: 1 of them for 2 input_ids"},
      {"nothing trained", "{\"input_ids\": [1, 2], \"labels\": [1, -100]}", "no token is trained"},
      {"one token", "{\"input_ids\": [1]}", "no token is trained"},
      {"padding", "{\"input_ids\": [1, 2, 0], \"attention_mask\": [1, 1, 0]}",
       "attention_mask[2]: the row holds padding"},
  };
}

// Every kind of bad row gives one line with file, line and reason.
TEST_F(Prepare, NamesFileAndLineOfEveryKindOfBadRow) {
  const std::string good_text = "{\"text\": \"good\"}\n", good_ids = "{\"input_ids\": [1, 2]}\n";
  for (const BadRow& bad : bad_rows()) {
    const std::string text = refusal(good_text + bad.row + "\n" + good_text);
    EXPECT_EQ(text.find("rows.jsonl:2: " + bad.message), 0u) << bad.what << ": " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  for (const BadRow& bad : bad_token_rows()) {
    const std::string text = refusal(good_ids + bad.row + "\n" + good_ids);
    EXPECT_EQ(text.find("rows.jsonl:2: " + bad.message), 0u) << bad.what << ": " << text;
  }
}

// With data.bad_rows = "skip" bad rows are skipped and counted.
TEST_F(Prepare, SkipsAndCountsBadRowsWhereTheRunFileSaysSo) {
  options_.data.bad_rows = DataSection::BadRows::kSkip;
  std::string content = "{\"text\": \"good\"}\n";
  for (const BadRow& bad : bad_rows()) content += bad.row + "\n{\"text\": \"good\"}\n";
  const LoadedData data = load(content);
  const auto bad_count = static_cast<int64_t>(bad_rows().size());
  EXPECT_EQ(data.report.total().bad_rows, bad_count);
  EXPECT_EQ(data.dataset->document_count(), bad_count + 1);
  EXPECT_NE(data.report.lines().at(0).find("17 bad rows skipped"), std::string::npos);
}

// A bad last row without line feed is reported as possibly cut off.
TEST_F(Prepare, SaysThatTheLastRowIsCutOff) {
  const std::string text = refusal("{\"text\": \"good\"}\n{\"text\": \"go");
  EXPECT_EQ(text.find("rows.jsonl:2: not JSON: "), 0u) << text;
  EXPECT_NE(text.find("the file ends inside this row, is it cut off?"), std::string::npos) << text;
}

// Ten bad rows are reported together; then reading stops.
TEST_F(Prepare, ShowsTenBadRowsAtOnceAndThenStops) {
  std::string content;
  for (int i = 0; i < 15; ++i) content += "{\"text\": \"\"}\n";
  const std::string text = refusal(content);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10) << text;
  EXPECT_NE(text.find("rows.jsonl:10: text: the string is empty\nthere may be more"),
            std::string::npos)
      << text;
}

// Files without usable rows are refused as a whole.
TEST_F(Prepare, RefusesFilesAsAWhole) {
  EXPECT_EQ(refusal("\n \n"), "rows.jsonl: holds no rows");
  EXPECT_EQ(refusal(""), "rows.jsonl: holds no rows");
  EXPECT_EQ(refusal("", "a.txt"), "a.txt: text: the string is empty");
  EXPECT_EQ(refusal("ab\ncd\xFF", "a.txt"), "a.txt:2: not UTF-8");
  EXPECT_EQ(refusal(std::string("ab\n\ncd\0", 7), "a.txt"), "a.txt:3: holds a NUL character");
  EXPECT_EQ(refusal("{\"body\": 1}\n"),
            "rows.jsonl:1: no known format: expected a key \"text\", \"messages\", "
            "\"conversations\", \"input_ids\", \"prompt\" with \"completion\", \"instruction\" "
            "with \"output\", or \"chosen\" with \"rejected\", found body; data.keys gives keys "
            "other names");
  options_.data.format = DataSection::Format::kTokens;
  EXPECT_EQ(refusal("ab", "a.txt"),
            "a.txt: a .txt file is a document of the text format, but data.format is \"tokens\"");
  options_.files = {files_.path("missing.jsonl")};
  EXPECT_THROW(load(), DataError);
}

// Text rows are refused without a tokenizer, or where it has no eos token.
TEST_F(Prepare, RefusesTextWithoutTokenizerOrEos) {
  options_.tokenizer = nullptr;
  EXPECT_NE(refusal("{\"text\": \"a\"}\n").find("needs the model's tokenizer.json"),
            std::string::npos);
  const TrainedTokenizer trained = byte_tokenizer({.eos_token = ""});
  const Tokenizer without_eos =
      Tokenizer::from_files({.tokenizer = trained.tokenizer_json}, "without_eos");
  options_.tokenizer = &without_eos;
  EXPECT_NE(refusal("{\"text\": \"a\"}\n").find("data.add_eos = false"), std::string::npos);
}

// A token beyond the model's vocabulary is refused with its id and text.
TEST_F(Prepare, RefusesTokensThatTheModelDoesNotHave) {
  options_.model_vocabulary_size = 66;
  EXPECT_EQ(refusal("{\"text\": \"ab\"}\n"),
            "rows.jsonl:1: the tokenizer gives token 66 (b), the model's vocabulary has only 66");
}

// A row beyond data.max_tokens is handled as data.overlength says.
TEST_F(Prepare, TreatsOverlongRowsAsTheRunFileSays) {
  options_.data.max_tokens = 4;
  const std::string rows = "{\"text\": \"abcdefg\"}\n{\"text\": \"xy\"}\n";
  EXPECT_EQ(refusal(rows).find("rows.jsonl:1: 8 tokens, more than data.max_tokens = 4; raise it"),
            0u);

  options_.data.overlength = DataSection::Overlength::kDrop;
  const LoadedData dropped = load(rows);
  EXPECT_EQ(dropped.report.total().dropped, 1);
  EXPECT_EQ(dropped.dataset->document_count(), 1);

  options_.data.overlength = DataSection::Overlength::kTruncate;
  const LoadedData truncated = load(rows);
  EXPECT_EQ(truncated.report.total().truncated, 1);
  EXPECT_EQ(tokens_of(truncated, 0), (Ids{65, 66, 67, 68}));
  EXPECT_EQ(targets_of(truncated, 0), (Ids{66, 67, 68, -100}));

  options_.data.overlength = DataSection::Overlength::kSplit;
  const LoadedData split = load(rows);
  EXPECT_EQ(split.report.total().split, 1);
  ASSERT_EQ(split.dataset->document_count(), 3);
  EXPECT_EQ(tokens_of(split, 0), (Ids{65, 66, 67, 68}));
  EXPECT_EQ(tokens_of(split, 1), (Ids{69, 70, 71, 0}));
  EXPECT_EQ(targets_of(split, 1), (Ids{70, 71, 0, -100}));
  EXPECT_EQ(split.report.total().longest_row_tokens, 8);
}

// A row that truncation leaves without a trained token is refused.
TEST_F(Prepare, RefusesARowThatTruncationLeavesNothingToLearnOf) {
  options_.data.max_tokens = 2;
  options_.data.overlength = DataSection::Overlength::kTruncate;
  EXPECT_EQ(refusal("{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, 3]}\n"),
            "rows.jsonl:1: no trained token is left after truncation to data.max_tokens = 2");
}

// A data set without any document left is refused with the counts of what was left out.
TEST_F(Prepare, RefusesToTrainOnNothing) {
  options_.data.bad_rows = DataSection::BadRows::kSkip;
  EXPECT_EQ(refusal("{\"text\": \"\"}\n{\"text\": 5}\n"),
            "rows.jsonl: no document is left of 2 rows (2 bad ones skipped, 0 too long ones "
            "dropped)");
}

// An exception from the progress callback stops the preparation.
TEST_F(Prepare, CanBeStoppedByTheProgressCall) {
  options_.on_progress = [](const PrepareProgress&) { throw Error(ExitCode::kFailure, "stop"); };
  EXPECT_THROW(load("{\"text\": \"a\"}\n"), Error);
}

}  // namespace
}  // namespace longshore
