// The `man` command prints the manual page.
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/commands/manual_page.h"

namespace longshore {
namespace {

int run_man(const NoOptions&) {
  print_raw(manual_page(program_help()));
  return 0;
}

void add_man(CommandArguments command, CommandLine& line) {
  call_with_options(command, line, run_man);
}

}  // namespace

extern const Command kManCommand = {
    .group = CommandGroup::kLook,
    .name = "man",
    .description = "print the manual page: longshore man | man -l -",
    .add = add_man};

}  // namespace longshore
