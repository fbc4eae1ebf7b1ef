// Rows of Parquet files and elements of JSON arrays equal the rows of the same JSONL file,
// whichever program wrote them; damaged and hostile files give errors with a reason.
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "data/sources/row_source.h"
#include "tests/data/prepare_fixture.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

std::string table(const std::string& name) {
  return test_data() + "/data/tables/" + name;
}

// Returns the lines of all rows of a file, read in pieces of `piece` bytes.
std::string lines_of(const std::string& path, size_t piece = size_t{1} << 16) {
  const std::unique_ptr<ByteSource> source = open_row_source(open_data_file(path));
  std::string all, buffer(piece, '\0');
  while (const size_t got = source->read(buffer)) all.append(buffer, 0, got);
  return all;
}

std::vector<Json> rows_of(const std::string& path) {
  std::vector<Json> rows;
  std::istringstream lines(lines_of(path));
  for (std::string line; std::getline(lines, line);) rows.push_back(parse_json(line, {}, path));
  return rows;
}

std::string reason(const std::string& path) {
  try {
    lines_of(path);
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()).find(path), 0u) << error.what();
    return std::string(error.what()).substr(path.size());
  }
  return "none";
}

const char* const kWriters[] = {"snappy",          "plain", "zstd_v2",     "gzip",   "lz4",
                                "zero_dictionary", "delta", "small_pages", "polars", "duckdb"};

// Parquet files of every writer give the rows of the JSONL file.
TEST(Tables, RowsOfEveryWriterAreThoseOfTheJsonl) {
  const std::vector<Json> expected = rows_of(table("rows.jsonl"));
  ASSERT_EQ(expected.size(), 20u);
  for (const std::string writer : kWriters) {
    EXPECT_EQ(rows_of(table(writer + ".parquet")), expected) << writer;
  }
}

// A row group of 0 rows has no pages, wherever it stands in the file.
TEST(Tables, RowGroupsWithoutRowsArePassedOver) {
  for (const std::string name : {"empty_groups", "empty_groups_plain"}) {
    std::string texts;
    for (const Json& row : rows_of(table(name + ".parquet"))) {
      texts += row.at("text").get<std::string>() + std::to_string(row.at("tags").size()) + " ";
    }
    EXPECT_EQ(texts, "aaa0 bbb1 ccc2 ddd3 ") << name;
  }
  EXPECT_TRUE(rows_of(table("no_rows.parquet")).empty());
}

// Goal: columns of the type Json() of `datasets` are the JSON that they hold, at any depth, whether
// the column's type or only the metadata of `datasets` says so.
TEST(Tables, ColumnsOfJsonAreTheJsonThatTheyHold) {
  const std::vector<Json> expected = rows_of(table("json_columns.jsonl"));
  ASSERT_EQ(expected.size(), 2u);
  for (const std::string name : {"json_columns", "json_named"}) {
    std::vector<Json> rows = rows_of(table(name + ".parquet"));
    ASSERT_EQ(rows.size(), 2u) << name;
    for (size_t row = 0; row < 2; ++row) {
      for (const auto& [member, value] : expected[row].items()) {
        // Numbers and the order of members are those of the text.
        EXPECT_EQ(rows[row].at(member).dump(), value.dump()) << name << " " << member;
      }
      EXPECT_EQ(rows[row].size(), expected[row].size()) << name;
    }
  }
}

// A codec that is not supported is named, with the codecs to use.
TEST(Tables, WhatIsNotReadSaysWhatToDo) {
  const std::string said = reason(table("brotli.parquet"));
  EXPECT_NE(said.find("BROTLI"), std::string::npos) << said;
  EXPECT_NE(said.find("write the file with zstd or snappy"), std::string::npos) << said;
}

// Files that would expand without bound are refused before they do.
TEST(Tables, BombsAreRefusedBeforeTheyExpand) {
  EXPECT_NE(reason(table("bomb_letters.parquet")).find("which no text does"), std::string::npos);
  EXPECT_NE(reason(table("bomb_list.parquet")).find("more than 4194304 values in its lists"),
            std::string::npos);
  EXPECT_NE(reason(table("bomb_dictionary.parquet")).find("which no text does"), std::string::npos);
  EXPECT_NE(reason(table("bomb_entries.parquet")).find("dictionaries of a row group need 576 MiB"),
            std::string::npos);
}

// Goal: a cut or damaged file gives rows or an error with the file's name.
TEST(Tables, CutOffAndDamagedFilesAreErrorsOrRows) {
  const ScratchFiles files;
  for (const std::string writer : {"small_pages", "delta", "zstd_v2", "gzip", "polars"}) {
    const std::string whole = read_whole_file(table(writer + ".parquet"), kMiB);
    for (size_t kept = 4; kept < whole.size(); kept += 1 + whole.size() / 500) {
      EXPECT_NE(reason(files.write("cut.parquet", whole.substr(0, kept))), "none") << kept;
    }
    std::mt19937_64 random(7);
    size_t refused = 0;
    for (int i = 0; i < 700; ++i) {
      std::string damaged = whole;
      const size_t places = 1 + random() % 3;
      for (size_t p = 0; p < places; ++p) {
        char& byte = damaged[4 + random() % (damaged.size() - 4)];
        byte = static_cast<char>(i % 2 == 0 ? byte ^ (1 << (random() % 8)) : random());
      }
      refused += reason(files.write("damaged.parquet", damaged)) == "none" ? 0 : 1;
    }
    EXPECT_GT(refused, 100u) << writer;
  }
}

// Every element of a JSON array becomes a line, whatever the size of the pieces read.
TEST(Arrays, ElementsAreLines) {
  const ScratchFiles files;
  const std::string text =
      "\xEF\xBB\xBF \n[ {\"a\": \"[},\\\"{\\\\\", \"b\":\n [1, {\"c\": []}]},\n\n \"x\\n\" , 7,[ "
      "]]\n ";
  const std::string expected = "{\"a\":\"[},\\\"{\\\\\",\"b\":[1,{\"c\":[]}]}\n\"x\\n\"\n7\n[]\n";
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    EXPECT_EQ(lines_of(files.write("a.json", text), piece), expected) << piece;
  }
  EXPECT_EQ(lines_of(files.write("b.json", "[]")), "");
  EXPECT_EQ(lines_of(files.write("c.json", "[\n]")), "");
  EXPECT_EQ(lines_of(files.write("d.json", "[[[]]]")), "[[]]\n");
}

// An element longer than one read arrives whole.
TEST(Arrays, LongElementsAreWhole) {
  const ScratchFiles files;
  std::string text = "[";
  std::string expected;
  for (int i = 0; i < 40; ++i) {
    const std::string element =
        Json{{"text", std::string(70'000, static_cast<char>('a' + i % 26))}, {"i", i}}.dump();
    text += (i > 0 ? "," : "") + element;
    expected += element + "\n";
  }
  EXPECT_EQ(lines_of(files.write("a.json", text + "]")), expected);
}

// A broken array is refused with the number of the element.
TEST(Arrays, WhatIsNoArrayIsRefusedAtItsElement) {
  const ScratchFiles files;
  const auto said = [&](const std::string& text) { return reason(files.write("a.json", text)); };
  EXPECT_EQ(said("[{\"a\": 1}, {\"a\": "), ":2: the array does not end; is the file cut off?");
  EXPECT_EQ(said("[1, 2"), ":2: the array does not end; is the file cut off?");
  EXPECT_EQ(said("["), ":1: the array does not end; is the file cut off?");
  EXPECT_EQ(said("[1] [2]"), ":1: there is more behind the end of the array");
  EXPECT_EQ(said("[1,,2]"), ":2: the array has no element between two commas");
  EXPECT_EQ(said("[1,]"), ":2: the array has no element between two commas");
  EXPECT_EQ(said("[,]"), ":1: the array has no element between two commas");
  EXPECT_EQ(said("[1}]"), ":1: a brace that nothing opened");
}

class TableData : public PrepareFixture {
 protected:
  std::string prepared(const std::string& path) {
    options_.files = {path};
    const PreparedData data = prepare_or_open(options_);
    EXPECT_EQ(data.report.total().rows, 20) << path;
    // The header holds the data file's hash, so it differs.
    return read_whole_file(data.paths.front(), kMiB).substr(kTokenHeaderBytes);
  }
};

// Goal: JSONL, JSON arrays and tables of the same rows give the same prepared bytes.
TEST_F(TableData, JsonlArraysAndTablesGiveTheSamePreparedBytes) {
  options_.data.max_tokens = 1000;
  options_.data.bad_rows = DataSection::BadRows::kSkip;
  const std::string expected = prepared(table("rows.jsonl"));
  EXPECT_GT(expected.size(), 1000u);
  for (const std::string writer : kWriters) {
    EXPECT_TRUE(prepared(table(writer + ".parquet")) == expected) << writer;
  }
  Json array = Json::array();
  for (const Json& row : rows_of(table("rows.jsonl"))) array.push_back(row);
  EXPECT_TRUE(prepared(files_.write("a.json", array.dump())) == expected);
  EXPECT_TRUE(prepared(files_.write("b.json", array.dump(2) + "\n")) == expected);
}

// Goal: a bad row of a table or array is named by its number.
TEST_F(TableData, BadRowsAreNamedByTheirNumber) {
  options_.data.max_tokens = 1000;
  options_.files = {table("snappy.parquet")};
  try {
    load();
    ADD_FAILURE();
  } catch (const DataError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("snappy.parquet:4: messages[0].content: expected a string"),
              std::string::npos)
        << what;
  }
  EXPECT_NE(refusal("[{\"text\": \"a\"},\n {\"text\": 3}]", "rows.json").find("rows.json:2: "),
            std::string::npos);
}

}  // namespace
}  // namespace longshore
