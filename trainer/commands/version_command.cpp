// The `version` command prints the versions of program and libraries, and the CPU's features.
#include <torch/headeronly/version.h>

#include "base/json.h"
#include "base/log.h"
#include "offload/simd_level.h"
#include "trainer/commands/command.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

struct VersionOptions {
  bool json = false;
};

int run_version(const VersionOptions& options) {
  if (options.json) {
    const Json facts = {{"longshore", LONGSHORE_VERSION},
                        {"build", build_id()},
                        {"libtorch", TORCH_VERSION},
                        {"simd", name_of(best_simd_level())},
                        {"cuda", LONGSHORE_WITH_CUDA != 0}};
    print_json(facts);
    return 0;
  }
  print_out("longshore %s\nbuild %s\nLibTorch %s\nSIMD %s\nCUDA %s\n", LONGSHORE_VERSION,
            build_id().c_str(), TORCH_VERSION, std::string(name_of(best_simd_level())).c_str(),
            LONGSHORE_WITH_CUDA ? "compiled in" : "not compiled in");
  return 0;
}

void add_version(CommandArguments command, CommandLine& line) {
  VersionOptions& options = call_with_options(command, line, run_version);
  command.add_flag("--json", options.json, "print the result as one JSON object");
}

}  // namespace

extern const Command kVersionCommand = {.group = CommandGroup::kLook,
                                        .name = "version",
                                        .description = "print versions and CPU features",
                                        .add = add_version};

}  // namespace longshore
