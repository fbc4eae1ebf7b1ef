// The `tokenize` command reads JSON strings, one per line, and prints arrays of token ids.
#include <iostream>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"

namespace longshore {
namespace {

struct TokenizeOptions {
  std::string directory;
};

int run_tokenize(const TokenizeOptions& options) {
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

void add_tokenize(CommandArguments command, CommandLine& line) {
  TokenizeOptions& options = call_with_options(command, line, run_tokenize);
  command.add_option("directory", options.directory, "directory of the tokenizer").required();
}

}  // namespace

extern const Command kTokenizeCommand = {
    .group = CommandGroup::kPrepare,
    .name = "tokenize",
    .description = "tokenize JSON strings from standard input, one per line, to arrays of ids",
    .add = add_tokenize};

}  // namespace longshore
