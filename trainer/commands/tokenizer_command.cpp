// The `tokenizer train` command trains a tokenizer on text files.
#include "base/file.h"
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/commands/new_tokenizer.h"

namespace longshore {
namespace {

struct TokenizerTrainOptions {
  std::vector<std::string> files;
  int64_t vocabulary = 4096;
  std::string output = "tokenizer.json";
  bool json = false;
};

int run_tokenizer_train(const TokenizerTrainOptions& options) {
  const TrainedTokenizer tokenizer = make_tokenizer(options.files, options.vocabulary);
  write_output_file(options.output, tokenizer.tokenizer_json);
  const int64_t tokens = id_limit_of(tokenizer);
  if (options.json) {
    print_json({{"path", options.output}, {"tokens", tokens}});
  } else {
    print_out("%s: %lld tokens\n", options.output.c_str(), static_cast<long long>(tokens));
  }
  return 0;
}

void add_tokenizer(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  CommandArguments train =
      command.add_subcommand("train", "train a byte-level BPE tokenizer on text files");
  TokenizerTrainOptions& options = call_with_options(train, line, run_tokenizer_train);
  train.add_option("files", options.files, "text or JSON Lines files").required();
  train.add_number("--vocabulary", options.vocabulary, 1, kMostTokens, "number of tokens");
  train.add_option("--to", options.output, "file to write").show_default();
  train.add_flag("--json", options.json, "print the result as one JSON object");
}

}  // namespace

extern const Command kTokenizerCommand = {.group = CommandGroup::kPrepare,
                                          .name = "tokenizer",
                                          .description = "train a tokenizer",
                                          .add = add_tokenizer};

}  // namespace longshore
