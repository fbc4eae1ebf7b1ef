// Row formats of other trainers are read with default settings; conversation_rows.jsonl holds each
// row and what is trained of it.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/file.h"
#include "data/rows/row_format.h"
#include "data/tokens/dataset.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

const std::string kText = test_data() + "/text/";

// Templates of four families, each with another form of tool calls.
const std::map<std::string, std::string>& templates() {
  static const std::map<std::string, std::string> kTemplates = {
      {"qwen3", "published_templates/qwen3.jinja"},
      {"llama3_1", "published_templates/llama3_1.jinja"},
      {"glm4moe", "published_templates/glm4moe.jinja"},
      {"gemma3", "published_templates/gemma3.jinja"}};
  return kTemplates;
}

const Tokenizer& bytes() {
  static const Tokenizer loaded = Tokenizer::load(kText + "golden/bytes");
  return loaded;
}

std::vector<Json> listed_rows() {
  std::vector<Json> rows;
  std::ifstream file(test_data() + "/data/conversation_rows.jsonl");
  for (std::string line; std::getline(file, line);) {
    rows.push_back(parse_json(line, {}, "conversation_rows.jsonl"));
  }
  return rows;
}

// Returns the trained parts of a row's documents in order.
Json learned(const Json& row, const ChatTemplate* chat) {
  const RowFormatOptions options{
      .tokenizer = &bytes(), .model_vocabulary_size = bytes().id_limit(), .chat = chat};
  Json parts = Json::array();
  const auto format = make_row_format(detect_format(row, options), options);
  for (const Document& document : format->read_row(row)) {
    for (size_t t = 0; t < document.labels.size();) {
      std::vector<TokenId> ids;
      while (t < document.labels.size() && document.labels[t] != kNotTrained) {
        ids.push_back(document.labels[t++]);
      }
      if (!ids.empty()) parts.push_back(bytes().decode(ids, /*skip_special=*/false));
      if (ids.empty()) ++t;
    }
  }
  return parts;
}

// Goal: rows made for other trainers train the same tokens as there. A template may refuse a row,
// as Gemma's does when roles do not alternate; that row has no entry for it.
TEST(ConversationRows, TrainWhatOtherTrainersTrain) {
  std::map<std::string, ChatTemplate> chats;
  for (const auto& [name, path] : templates()) {
    chats.emplace(name, ChatTemplate::from_text(read_whole_file(kText + path, kMiB), bytes(),
                                                "2024-07-26", path));
  }
  const std::vector<Json> rows = listed_rows();
  ASSERT_GE(rows.size(), 40u);
  for (const Json& listed : rows) {
    SCOPED_TRACE(listed["about"].get<std::string>());
    std::string refusals;
    Json found = Json::object();
    for (const auto& [name, chat] : chats) {
      try {
        found[name] = learned(listed["row"], &chat);
      } catch (const std::exception& error) {
        refusals += name + ": " + error.what() + "\n";
      }
    }
    EXPECT_EQ(found, listed["learned"]) << refusals;
    EXPECT_GE(found.size(), 3u) << refusals;
  }
}

}  // namespace
}  // namespace longshore
