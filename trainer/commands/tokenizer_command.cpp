// The `tokenizer` command trains tokenizers and tokenizes text.
#include <iostream>
#include <string>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "text/tokenizer.h"
#include "trainer/commands/command.h"
#include "trainer/commands/new_tokenizer.h"

namespace longshore {
namespace {

struct TokenizerTrainOptions {
  std::vector<std::string> files;
  int64_t vocabulary = 4096;
  std::string output = "tokenizer.json";
  bool json = false;
};

struct TokenizerEncodeOptions {
  std::string directory;
};

int run_tokenizer_train(const TokenizerTrainOptions& options) {
  const TrainedTokenizer tokenizer = make_tokenizer(options.files, options.vocabulary);
  write_output_file(options.output, tokenizer.tokenizer_json);
  const int64_t tokens = id_limit_of(tokenizer);
  if (options.json) {
    print_json({{"path", options.output}, {"tokens", tokens}});
  } else {
    print_out("%s: %s tokens\n", options.output.c_str(), format_count(tokens).c_str());
  }
  return 0;
}

// Reads JSON strings from standard input, one per line, and prints arrays of token ids.
int run_tokenizer_encode(const TokenizerEncodeOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.directory);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const std::string place = "stdin:" + std::to_string(number);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const Json text = parse_json(line, {}, place);
    if (!text.is_string()) throw DataError(place + ": expected a JSON string");
    const std::vector<TokenId> ids =
        tokenizer.encode(text.get_ref<const std::string&>(), SpecialTokens::kNone);
    print_json_line(Json(ids));
  }
  return 0;
}

void add_tokenizer_train(CommandArguments command, CommandLine& line) {
  CommandArguments train =
      command.add_subcommand("train", "train a byte-level BPE tokenizer on text files");
  TokenizerTrainOptions& options = call_with_options(train, line, run_tokenizer_train);
  train.add_option("texts", options.files, "text or JSON Lines files").required();
  train.add_number("--vocabulary", options.vocabulary, 1, kMostTokens, "number of tokens");
  train.add_option("--to", options.output, "file to write").show_default();
  train.add_flag("--json", options.json, "print the result as one JSON object");
}

void add_tokenizer_encode(CommandArguments command, CommandLine& line) {
  CommandArguments encode = command.add_subcommand(
      "encode", "tokenize JSON strings from standard input, one per line, to arrays of ids");
  TokenizerEncodeOptions& options = call_with_options(encode, line, run_tokenizer_encode);
  encode.add_option("directory", options.directory, "directory of the tokenizer").required();
}

void add_tokenizer(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  add_tokenizer_train(command, line);
  add_tokenizer_encode(command, line);
}

}  // namespace

extern const Command kTokenizerCommand = {.group = CommandGroup::kPrepare,
                                          .name = "tokenizer",
                                          .description = "train a tokenizer, or tokenize text",
                                          .add = add_tokenizer};

}  // namespace longshore
