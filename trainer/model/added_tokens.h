// AddedTokens: the tokens that a run file adds to its tokenizer (tokenizer.add_tokens and
// tokenizer.add_special_tokens), and the tokenizer's files with them. A token that the tokenizer
// knows as added stays as it is. As in transformers a piece of its vocabulary keeps its id and is
// read whole from now on, and new tokens get the ids behind the last. ModelSource owns it;
// immutable; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "text/tokenizer.h"

namespace longshore {

class AddedTokens {
 public:
  struct Token {
    std::string text;
    TokenId id = 0;
    bool special = false;
  };

  // Reads the tokenizer of the run, unless the run file adds no token. DataError if its files are
  // unusable or cannot take the tokens.
  AddedTokens(const RunConfig& config, const std::string& model_directory);

  // Returns those that the tokenizer lacked, with ascending ids.
  const std::vector<Token>& fresh() const { return fresh_; }
  // Returns the number of rows that a model needs for all ids; 0 if the run file adds no token.
  int64_t id_limit() const { return id_limit_; }
  // Returns the tokenizer's files with the tokens, by name: tokenizer.json, and
  // tokenizer_config.json if there is one. None if the run file adds no token.
  const std::map<std::string, std::string>& files() const { return files_; }
  // Returns both keys with their values, which identify the tokens; empty if none is added.
  const std::string& text() const { return text_; }

 private:
  std::vector<Token> fresh_;
  int64_t id_limit_ = 0;
  std::map<std::string, std::string> files_;
  std::string text_;
};

// Returns both keys with their values in a resolved run file (to_toml), as AddedTokens::text does.
std::string added_tokens_text(const std::string& config_text);

// The run's tokenizer. Plain functions.

// Returns tokenizer.path, or the model's directory for "auto".
std::string tokenizer_directory(const RunConfig& config, const std::string& model_directory);
// Loads it with the tokens that the run file adds.
Tokenizer load_run_tokenizer(const RunConfig& config, const std::string& model_directory);

}  // namespace longshore
