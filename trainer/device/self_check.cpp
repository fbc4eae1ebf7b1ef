#include "trainer/device/self_check.h"

#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/texts.h"
#include "device/cuda_driver.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

std::string how_it_ended(const SelfCheck& check, const ChildEnd& ended) {
  if (ended.in_time) return ended.text();
  return "it did not end within " + std::to_string(check.limit.count() / 1000) + " s";
}

std::string memory_file(const SelfCheck& check) {
  return check.directory + "/" + hash_text(hash64(check.identity));
}

bool passed_before(const SelfCheck& check) {
  std::error_code ignored;
  if (!std::filesystem::exists(memory_file(check), ignored)) return false;
  return read_own_file(memory_file(check), kMiB) == check.identity;
}

}  // namespace

SelfCheck self_check_of(const CudaDevice& gpu, int number, const std::string& cache) {
  return {.command = {"/proc/self/exe", "check", "gpu", "--gpu", std::to_string(number)},
          .directory = cache + "/gpu",
          .identity = gpu.name + "\ncompute " + std::to_string(gpu.compute_major) + "." +
                      std::to_string(gpu.compute_minor) + "\nmemory " +
                      std::to_string(gpu.memory_bytes) + "\ndriver " + cuda_driver_version() +
                      "\nLibTorch " TORCH_VERSION "\nbuild " + build_id() + "\n"};
}

void require_sound_gpu(const SelfCheck& check) {
  if (passed_before(check)) return;
  log_info("the first run on this GPU and driver: comparing it with the CPU");
  const ChildEnd ended = run_child(check.command, check.limit);
  if (ended.good()) {
    make_directories(check.directory);
    replace_file(memory_file(check), check.identity);
    return;
  }
  std::string said;
  for (size_t begin = 0; begin < ended.output.size();) {
    const size_t end = std::min(ended.output.find('\n', begin), ended.output.size());
    said += "\n  " + printable(ended.output.substr(begin, end - begin));
    begin = end + 1;
  }
  throw GpuError("device.kind: the GPU's self-check failed, " + how_it_ended(check, ended) + said +
                 "\nNothing was trained. Please report the lines above with the output of "
                 "`longshore version` and `nvidia-smi`; device.kind = \"cpu\" trains on the CPU");
}

}  // namespace longshore
