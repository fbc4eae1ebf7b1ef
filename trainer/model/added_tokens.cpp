#include "trainer/model/added_tokens.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/texts.h"
#include "config/toml_document.h"
#include "hf/json_members.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

constexpr const char* kTokenizerName = "tokenizer.json";
constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kList = "added_tokens";             // of tokenizer.json
constexpr const char* kDecoder = "added_tokens_decoder";  // of tokenizer_config.json
constexpr const char* kKey = "tokenizer.add_tokens";
constexpr const char* kSpecialKey = "tokenizer.add_special_tokens";
constexpr Bytes kMostConfigBytes = 16 * kMiB;
constexpr JsonLimits kLimits{.max_bytes = 64 * kMiB, .max_depth = 8, .max_values = 4'000'000};

struct Extended {
  Tokenizer tokenizer;
  std::vector<AddedTokens::Token> fresh;
  std::map<std::string, std::string> files;
};

// Returns the value of a top-level member; null if there is none.
Json member_of(const std::string& text, const char* key, const std::string& origin) {
  const std::optional<TextRange> value = member_value(text, key);
  if (!value) return nullptr;
  return parse_json(std::string_view(text).substr(value->begin, value->end - value->begin), kLimits,
                    origin + ": " + key);
}

// Returns the texts of the added tokens that either file lists.
std::set<std::string> listed_tokens(const std::string& tokenizer, const std::string& config,
                                    const std::string& directory) {
  std::set<std::string> texts;
  const auto take = [&texts](const Json& tokens) {
    if (!tokens.is_structured()) return;
    for (const Json& token : tokens) texts.insert(member_text(token, "content"));
  };
  take(member_of(tokenizer, kList, directory + "/" + kTokenizerName));
  if (!config.empty()) take(member_of(config, kDecoder, directory + "/" + kConfigName));
  return texts;
}

// Appends elements, each of them JSON, to the list or table of a top-level member. `brackets` are
// those of the member, which a text without it gets.
std::string with_elements(const std::string& text, const char* key,
                          const std::vector<std::string>& elements, const std::string& brackets) {
  if (elements.empty()) return text;
  const std::string all = joined(elements, ",\n    ");
  const std::optional<TextRange> value = member_value(text, key);
  if (!value || text[value->begin] != brackets[0]) {
    return with_member(text, key, brackets.substr(0, 1) + "\n    " + all + "\n  " + brackets[1]);
  }
  const size_t last = text.find_last_not_of(" \t\r\n", value->end - 2);
  const std::string before = last == value->begin ? "\n    " : ",\n    ";
  return text.substr(0, last + 1) + before + all + text.substr(last + 1);
}

// Returns the entry as transformers writes it. The token is looked for before the normalizer
// changes the text, so that it is found inside of words as well.
Json entry_of(const AddedTokens::Token& token) {
  return {{"content", token.text}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},       {"normalized", false},  {"special", token.special}};
}

// Adds the tokens to the texts of both files. The second gets them only if it has such a table:
// with one it would no longer read special_tokens_map.json.
void add_entries(const std::vector<AddedTokens::Token>& tokens, std::string& tokenizer,
                 std::string& config) {
  std::vector<std::string> list, table;
  for (const AddedTokens::Token& token : tokens) {
    const std::string id = std::to_string(token.id);
    std::string entry = json_text(entry_of(token));
    table.push_back("\"" + id + "\": " + entry);
    list.push_back(entry.replace(0, 1, "{\"id\":" + id + ","));
  }
  tokenizer = with_elements(tokenizer, kList, list, "[]");
  const std::optional<TextRange> decoder =
      config.empty() ? std::nullopt : member_value(config, kDecoder);
  if (decoder && config[decoder->begin] == '{')
    config = with_elements(config, kDecoder, table, "{}");
}

// Throws unless the tokenizer reads each token as one, with its id.
void check_tokens(const Tokenizer& tokenizer, const std::vector<AddedTokens::Token>& tokens,
                  const std::string& directory) {
  for (const AddedTokens::Token& token : tokens) {
    const std::vector<TokenId> ids = tokenizer.encode(token.text, SpecialTokens::kNone);
    const bool read = std::ranges::find(ids, token.id) != ids.end();
    if (tokenizer.id_of(token.text) == token.id && read) continue;
    throw DataError(directory + ": its tokenizer cannot take the token '" +
                    printable(token.text, 40) + "' with the id " + std::to_string(token.id) +
                    ": ids of its vocabulary are left out, or tokenizer_config.json adds tokens of "
                    "its own or reads special tokens as text; add the tokens with transformers "
                    "(add_tokens, then save_pretrained), and name that directory by "
                    "tokenizer.path");
  }
}

Extended extend(const TokenizerSection& section, const std::string& directory) {
  TokenizerFiles files = Tokenizer::read_files(directory);
  const Tokenizer base = Tokenizer::from_files(files, directory);
  const std::string config_path = directory + "/" + kConfigName;
  // Unlike the text that is read for tokens, that of an export keeps Python's numbers.
  std::string config;
  if (!files.tokenizer_config.empty()) config = read_whole_file(config_path, kMostConfigBytes);
  const std::set<std::string> known =
      listed_tokens(files.tokenizer, files.tokenizer_config, directory);
  std::vector<AddedTokens::Token> entries, fresh;
  int64_t next = base.id_limit();
  const auto add = [&](const std::vector<std::string>& texts, bool special) {
    for (const std::string& text : texts) {
      if (known.contains(text)) continue;
      const std::optional<TokenId> id = base.id_of(text);
      if (!id && next >= std::numeric_limits<TokenId>::max() - 1) {
        throw DataError(directory + ": its tokenizer has no free ids");
      }
      entries.push_back({text, id ? *id : static_cast<TokenId>(next++), special});
      if (!id) fresh.push_back(entries.back());
    }
  };
  add(section.add_tokens, false);
  add(section.add_special_tokens, true);
  add_entries(entries, files.tokenizer, config);
  if (!config.empty()) files.tokenizer_config = python_numbers(config);
  Extended extended{.tokenizer = Tokenizer::from_files(files, directory),
                    .fresh = std::move(fresh),
                    .files = {{kTokenizerName, files.tokenizer}}};
  if (!config.empty()) extended.files.emplace(kConfigName, std::move(config));
  check_tokens(extended.tokenizer, entries, directory);
  return extended;
}

std::string text_of(const std::string& ordinary, const std::string& special) {
  return std::string(kKey) + " = " + ordinary + ", " + kSpecialKey + " = " + special;
}

}  // namespace

AddedTokens::AddedTokens(const RunConfig& config, const std::string& model_directory) {
  const TokenizerSection& section = config.tokenizer;
  if (!section.adds()) return;
  Extended extended = extend(section, tokenizer_directory(config, model_directory));
  fresh_ = std::move(extended.fresh);
  files_ = std::move(extended.files);
  id_limit_ = extended.tokenizer.id_limit();
  text_ = text_of(toml_list(section.add_tokens), toml_list(section.add_special_tokens));
}

std::string added_tokens_text(const std::string& config_text) {
  const std::map<std::string, std::string> values = config_values(config_text);
  const auto value = [&values](const char* key) {
    const auto found = values.find(key);
    return found == values.end() ? std::string("[]") : found->second;
  };
  const std::string ordinary = value(kKey), special = value(kSpecialKey);
  return ordinary == "[]" && special == "[]" ? "" : text_of(ordinary, special);
}

std::string tokenizer_directory(const RunConfig& config, const std::string& model_directory) {
  return config.tokenizer.path == "auto" ? model_directory : config.tokenizer.path;
}

Tokenizer load_run_tokenizer(const RunConfig& config, const std::string& model_directory) {
  const std::string directory = tokenizer_directory(config, model_directory);
  if (!config.tokenizer.adds()) return Tokenizer::load(directory);
  return extend(config.tokenizer, directory).tokenizer;
}

}  // namespace longshore
