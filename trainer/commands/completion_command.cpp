// The `completion` command prints a script that completes commands and keys in a shell.
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/commands/shell_completion.h"

namespace longshore {
namespace {

struct CompletionOptions {
  std::string shell;
};

int run_completion(const CompletionOptions& options) {
  print_raw(completion_script(options.shell, program_help()));
  return 0;
}

void add_completion(CommandArguments command, CommandLine& line) {
  CompletionOptions& options = call_with_options(command, line, run_completion);
  command.add_option("shell", options.shell, "shell: bash, zsh or fish")
      .required()
      .one_of({"bash", "zsh", "fish"});
}

}  // namespace

extern const Command kCompletionCommand = {
    .group = CommandGroup::kLook,
    .name = "completion",
    .description = "print a script that completes commands and keys in bash, zsh or fish",
    .add = add_completion};

}  // namespace longshore
