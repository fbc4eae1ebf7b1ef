// Files that are not what their name says: each gives its own error, and none blocks the reader.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include "data/rows/row_format.h"
#include "tests/data/prepare_fixture.h"
#include "tests/fakes/sanitizer.h"

namespace longshore {
namespace {

class HostileFiles : public PrepareFixture {
 protected:
  void expect(const std::string& content, const std::string& name, const std::string& message) {
    const std::string said = refusal(content, name);
    EXPECT_NE(said.find(message), std::string::npos) << said;
  }
};

std::string gzip_of_letters(size_t mebibytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string letters(size_t{1} << 20, 'a'), out(size_t{1} << 20, '\0'), all;
  for (size_t i = 0; i <= mebibytes; ++i) {
    stream.next_in = reinterpret_cast<Bytef*>(letters.data());
    stream.avail_in = i < mebibytes ? static_cast<uInt>(letters.size()) : 0;
    int result = Z_OK;
    do {
      stream.next_out = reinterpret_cast<Bytef*>(out.data());
      stream.avail_out = static_cast<uInt>(out.size());
      result = deflate(&stream, i < mebibytes ? Z_NO_FLUSH : Z_FINISH);
      all.append(out.data(), out.size() - stream.avail_out);
    } while (stream.avail_out == 0 && result != Z_STREAM_END);
  }
  deflateEnd(&stream);
  return all;
}

std::string zstd_of_letters(size_t mebibytes) {
  const std::string letters(mebibytes << 20, 'a');
  std::string out(ZSTD_compressBound(letters.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), letters.data(), letters.size(), 19));
  return out;
}

// Goal: a file that expands beyond any text's ratio is refused after a small part of it.
TEST_F(HostileFiles, CompressedBombsAreRefused) {
  const std::string message = "which no text does";
  for (const char* name : {"a.txt.gz", "a.jsonl.gz"}) {
    expect(gzip_of_letters(66), name, message);
  }
  for (const char* name : {"a.txt.zst", "a.jsonl.zst"}) {
    expect(zstd_of_letters(66), name, message);
  }
}

// Goal: pipes and devices are not opened, because no process may ever write into them.
TEST_F(HostileFiles, OnlyRegularFilesAreRead) {
  const std::string fifo = files_.path("rows.jsonl");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero"), std::string("/dev/null")}) {
    options_.files = {path};
    try {
      load();
      ADD_FAILURE() << path;
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()),
                path + ": is no regular file; write what a pipe or device gives to a file");
    }
  }
}

// Goal: a sparse file of a terabyte is refused at once, not read to its end.
TEST_F(HostileFiles, FilesWithHolesAreRefusedAtOnce) {
  for (const char* name : {"rows.jsonl", "a.txt"}) {
    options_.files = {files_.write(name, "{\"text\": \"a\"}\n")};
    std::filesystem::resize_file(options_.files.front(), uintmax_t{1} << 40);
    try {
      load();
      ADD_FAILURE() << name;
    } catch (const DataError& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.find(options_.files.front() + ": nothing was written from byte "), 0u) << what;
    }
  }
}

// Goal: a file of another kind gives an error with its kind, the expected kind and advice.
TEST_F(HostileFiles, OtherKindsOfFilesHaveTheirOwnMessages) {
  expect("\n{\n  \"text\": \"a\"\n}\n", "rows.jsonl",
         "rows.jsonl:2: an object over several lines; expected JSONL");
  expect("text,label\nhello,1\n", "rows.csv",
         "rows.csv:1: the file looks like a table (CSV); expected JSONL");
  expect("text\tlabel\nhello\t1\n", "rows.tsv", "looks like a table");
  expect("caf\xE9\n", "rows.jsonl",
         "rows.jsonl:1: not UTF-8 at byte 3 of the line; convert the file to UTF-8");
  expect("Once upon a time\n", "rows.jsonl", "the line is no JSON object; expected JSONL");
  expect("{\"body\": \"a\"}\n", "rows.jsonl", "found body; data.keys gives keys other names");
  expect("\xEF\xBB\xBF\xEF\xBB\xBF{\"text\": \"a\"}\n", "rows.jsonl",
         "rows.jsonl:1: begins with two byte order marks; remove both");
  expect("\xEF\xBB\xBF\xEF\xBB\xBFtext", "a.txt", "a.txt:1: begins with two byte order marks");
  expect("\xEF\xBB\xBF\xFF\xFE", "rows.jsonl", "is UTF-16");
  for (const std::string& begin :
       {std::string("ARROW1\0\0", 8), std::string("\xFF\xFF\xFF\xFF\xA0")}) {
    expect(begin + "rows", "rows.arrow", "rows.arrow: an Arrow file, as datasets.save_to_disk");
    expect(begin + "rows", "a.txt", "datasets.load_from_disk(DIRECTORY).to_parquet");
  }
  expect("PK\x03\x04rows", "rows.xlsx", "rows.xlsx: a zip archive or workbook; write its rows");
  expect("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a.txt",
         "a.txt: a Git LFS pointer, not the file itself; run git lfs pull");
}

// Goal: the command that shows rows refuses a file without a known format with the same error.
TEST_F(HostileFiles, AFileWithoutAFormatIsRefusedByItsFirstRow) {
  const auto refused = [&](const std::string& content) {
    const std::string path = files_.write("rows.jsonl", content);
    try {
      refuse_unknown_format(path, row_format_options(options_));
    } catch (const DataError& error) {
      return std::string(error.what()).substr(path.size());
    }
  };
  EXPECT_EQ(refused("\n\n"), ": holds no rows");
  EXPECT_EQ(refused("[]\n"), ": holds no rows");
  EXPECT_NE(refused("{\"body\": 1}\n").find(":1: no known format: expected a key"),
            std::string::npos);
  EXPECT_NE(refused("{\"text\": \n").find(":1: not JSON"), std::string::npos);
}

std::string words(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += "word" + std::to_string(i * i % 1000) + " of ";
  return text + "end";
}

// Goal: a long .txt file gives the documents of one row with that text, for every data.overlength.
TEST_F(HostileFiles, ALongTextFileIsTakenAsARowOfTheSameText) {
  using Overlength = DataSection::Overlength;
  const std::string text = words(20'000);
  const std::string row = Json{{"text", text}}.dump() + "\n";
  for (const Overlength overlength :
       {Overlength::kSplit, Overlength::kTruncate, Overlength::kError}) {
    for (const int64_t max_tokens : {1000, 1'000'000}) {
      options_.data.overlength = overlength;
      options_.data.max_tokens = max_tokens;
      if (overlength == Overlength::kError && max_tokens == 1000) {
        const std::string said = refusal(text, "a.txt");
        // The file is not read to its end for this error.
        EXPECT_EQ(said.find("a.txt: more tokens than data.max_tokens = 1000; raise it"), 0u)
            << said;
        EXPECT_NE(refusal(row).find(" tokens, more than data.max_tokens = 1000; raise it"),
                  std::string::npos);
        continue;
      }
      const LoadedData file = load(text, "a.txt");
      const LoadedData rows = load(row);
      const int64_t documents = rows.dataset->document_count();
      ASSERT_EQ(file.dataset->document_count(), documents);
      for (int64_t d = 0; d < documents; ++d) {
        ASSERT_EQ(tokens_of(file, d), tokens_of(rows, d));
        ASSERT_EQ(targets_of(file, d), targets_of(rows, d));
      }
      FileReport of_file = file.report.files.at(0), of_rows = rows.report.files.at(0);
      EXPECT_EQ(to_json(of_file), to_json(of_rows));
    }
  }
}

// Goal: rows of many megabytes keep their order, although the pipeline runs empty between them. All
// together are more than it holds at one time.
TEST_F(HostileFiles, VeryLongRowsPassInTheirOrder) {
  options_.data.overlength = DataSection::Overlength::kTruncate;
  options_.data.max_tokens = 16;
  // A sanitizer makes a megabyte take ten seconds.
  const std::string text = words(kSanitized ? 45'000 : 900'000);
  ASSERT_GT(text.size(), kSanitized ? size_t{400} << 10 : size_t{8} << 20);
  std::string rows;
  for (int row = 0; row < 4; ++row) {
    rows += Json{{"text", std::to_string(row) + text}}.dump() + "\n{\"text\": \"short\"}\n";
  }
  const LoadedData data = load(rows);
  EXPECT_EQ(data.report.total().rows, 8);
  ASSERT_EQ(data.dataset->document_count(), 8);
  for (int64_t row = 0; row < 4; ++row) {
    const std::string first = text_of(tokens_of(data, 2 * row));
    EXPECT_EQ(first.substr(0, 6), std::to_string(row) + "word0") << first;
    EXPECT_EQ(text_of(tokens_of(data, 2 * row + 1)).substr(0, 5), "short");
  }
}

// Goal: ids that only a tokenizer's post-processor has are refused when they enter.
TEST_F(HostileFiles, IdsOutsideTheVocabularyAreRefused) {
  const TrainedTokenizer trained = byte_tokenizer({.eos_token = "</s>"});
  for (const std::string id : {"4294967196", "4294967039", "2147483648", "2147483647", "257"}) {
    Json file = Json::parse(trained.tokenizer_json);
    file["post_processor"] = Json::parse(
        R"({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [)" +
        id + R"(], "tokens": ["</s>"]}}})");
    try {
      Tokenizer::from_files(
          {.tokenizer = file.dump(), .tokenizer_config = trained.tokenizer_config_json}, "model");
      ADD_FAILURE() << id;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("the tokenizer gives the id " + id),
                std::string::npos)
          << error.what();
    }
  }
  // These tokens are in the vocabulary, but the model has no row for them.
  options_.model_vocabulary_size = 100;
  EXPECT_NE(refusal("{\"text\": \"\xC3\xA9\"}\n").find("the model's vocabulary has only 100"),
            std::string::npos);
  EXPECT_NE(refusal("{\"input_ids\": [1, 100]}\n").find("input_ids[1]: 100 is no token"),
            std::string::npos);
  EXPECT_NE(refusal("{\"input_ids\": [1, -100]}\n").find("input_ids[1]: -100 is no token"),
            std::string::npos);
  EXPECT_NE(refusal("{\"input_ids\": [1, 4294967297]}\n").find("is no token"), std::string::npos);
}

}  // namespace
}  // namespace longshore
