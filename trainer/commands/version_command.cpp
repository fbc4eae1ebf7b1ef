// version: of the program and its libraries, and what the CPU can do.
#include <torch/headeronly/version.h>

#include "base/output.h"
#include "offload/simd_level.h"
#include "trainer/commands/command.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

int run_version(const NoOptions&) {
  print_out("longshore %s\nbuild %s\nLibTorch %s\nSIMD %s\nCUDA %s\n", LONGSHORE_VERSION,
            build_id().c_str(), TORCH_VERSION, std::string(name_of(best_simd_level())).c_str(),
            LONGSHORE_WITH_CUDA ? "compiled in" : "not compiled in");
  return 0;
}

void add_version(CLI::App& command, CommandLine& line) {
  call_with_options(command, line, run_version);
}

}  // namespace

extern const Command kVersionCommand = {.group = CommandGroup::kLook,
                                        .name = "version",
                                        .sentence = "version, libraries, what the CPU can do",
                                        .add = add_version};

}  // namespace longshore
