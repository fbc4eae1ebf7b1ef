// gpu-check: what a run on a GPU does before its first step there, by hand.
#include "base/output.h"
#include "trainer/commands/commands.h"
#include "trainer/run/gpu_check.h"
#include "trainer/run/self_check.h"

namespace longshore {

int run_gpu_check(int gpu) {
  const std::vector<std::string> differences = check_gpu(gpu);
  for (const std::string& line : differences) print_out("%s\n", line.c_str());
  if (!differences.empty()) return kGpuExitCode;
  print_out("GPU %d computes what the CPU does\n", gpu);
  return 0;
}

}  // namespace longshore
