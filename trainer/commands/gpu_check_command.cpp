// The `gpu-check` command runs the comparison that a run on a GPU makes before its first step.
#include "base/errors.h"
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/commands/json_output.h"
#include "trainer/device/gpu_check.h"

namespace longshore {
namespace {

struct GpuCheckOptions {
  int gpu = 0;
  bool json = false;
};

// Prints the differences, and returns ExitCode::kGpu if there are any.
int run_gpu_check(const GpuCheckOptions& options) {
  const std::vector<std::string> differences = check_gpu(options.gpu);
  const bool same = differences.empty();
  if (options.json) {
    print_json({{"gpu", options.gpu}, {"same", same}, {"differences", differences}});
  } else {
    for (const std::string& line : differences) print_out("%s\n", line.c_str());
    if (same) print_out("GPU %d gives the same results as the CPU\n", options.gpu);
  }
  return static_cast<int>(same ? ExitCode::kDone : ExitCode::kGpu);
}

void add_gpu_check(CommandArguments command, CommandLine& line) {
  GpuCheckOptions& options = call_with_options(command, line, run_gpu_check);
  command.add_number("--gpu", options.gpu, 0, 1023, "number of the GPU");
  command.add_flag("--json", options.json, "print the differences as one JSON object");
}

}  // namespace

extern const Command kGpuCheckCommand = {
    .group = CommandGroup::kLook,
    .name = "gpu-check",
    .description = "compare a GPU with the CPU; every run does this before it uses a GPU",
    .add = add_gpu_check,
    .ranks = CommandRanks::kAll};

}  // namespace longshore
