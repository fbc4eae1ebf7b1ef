#include "trainer/device/device_choice.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/errors.h"
#include "base/log.h"
#include "device/cuda_runtime.h"

namespace longshore {
namespace {

using Kind = DeviceSection::Kind;

constexpr const char* kUseCpu = "device.kind = \"cpu\" trains on the CPU";
// The oldest compute capability that the build has code for (cmake/Cuda.cmake).
constexpr int kOldestCompute = 8;

std::string first_word(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

}  // namespace

FoundGpus find_gpus(const std::string& pci_devices) {
  FoundGpus found{.usable = cuda_devices(), .present = {}, .trouble = cuda_trouble()};
  std::error_code ignored;
  for (const auto& device : std::filesystem::directory_iterator(pci_devices, ignored)) {
    // PCI class 0x03 contains displays and 3D controllers; a card's sound device has another class.
    if (first_word(device.path() / "vendor") != "0x10de") continue;
    if (!first_word(device.path() / "class").starts_with("0x03")) continue;
    found.present.push_back(device.path().filename());
  }
  std::sort(found.present.begin(), found.present.end());
  return found;
}

std::optional<Kind> begun_on(const RunConfig& config) {
  const std::string file = config.run.dir + "/config.toml";
  std::error_code ignored;
  if (config.checkpoint.resume != "auto" || !std::filesystem::exists(file, ignored)) {
    return std::nullopt;
  }
  try {
    const Kind kind = load_run_config({file}, {}, {.complete = false}).device.kind;
    return kind == Kind::kCuda ? Kind::kCuda : Kind::kCpu;
  } catch (const Error&) {
    return std::nullopt;  // the start reports an invalid run file
  }
}

void resolve_device(RunConfig& config, const FoundGpus& found) {
  if (config.device.kind != Kind::kAuto) return;
  const std::optional<Kind> begun = begun_on(config);
  if (begun == Kind::kCpu) {
    config.device.kind = Kind::kCpu;
    if (!found.usable.empty()) {
      log_info(
          "device.kind = \"auto\": this run began on the CPU and stays there; "
          "device.kind = \"cuda\" moves it to the GPU");
    }
    return;
  }
  if (found.usable.empty() && !found.trouble.empty() && !found.present.empty()) {
    throw ConfigError("device.kind = \"auto\": this machine has a GPU (" + found.present.front() +
                      "), but CUDA cannot use it: " + found.trouble +
                      "; install NVIDIA's driver for CUDA 13 (580 or newer); " + kUseCpu);
  }
  if (found.usable.empty() && begun == Kind::kCuda) {
    throw ConfigError("device.kind = \"auto\": this run began on a GPU, and CUDA finds no GPU; " +
                      std::string(kUseCpu));
  }
  config.device.kind = found.usable.empty() ? Kind::kCpu : Kind::kCuda;
}

void agree_on_gpus(World& world, const RunConfig& config, const FoundGpus& found, int gpu) {
  const auto index = static_cast<size_t>(gpu);
  const bool cuda = config.device.kind == Kind::kCuda;
  std::string mine = "none";
  if (cuda && index < found.usable.size()) mine = "has " + found.usable[index].pci;
  if (cuda && found.usable.empty()) mine = "sees none";
  mine += "\n" + std::to_string(world.ranks().node);
  const std::vector<std::string> all = world.exchange("GPUs", mine);
  if (!cuda) return;
  const std::string machine = mine.substr(mine.find('\n'));
  const auto ranks = std::ranges::count_if(
      all, [&machine](const std::string& text) { return text.ends_with(machine); });
  std::set<std::string> gpus;
  for (const std::string& text : all) {
    if (text.ends_with(machine) && text.starts_with("has ")) gpus.insert(text);
  }
  if (std::ssize(gpus) == ranks || found.usable.empty()) return;
  throw ConfigError("device.kind: " + std::to_string(ranks) +
                    " ranks run on this machine, which has " + std::to_string(gpus.size()) +
                    " GPUs; start one rank per GPU; " + kUseCpu);
}

void require_gpus(const RunConfig& config, const FoundGpus& found, int32_t ranks) {
  if (config.device.kind != Kind::kCuda) return;
  const auto count = static_cast<int32_t>(found.usable.size());
  if (count == 0) {
    throw ConfigError("device.kind: this machine has no GPU that CUDA can use" +
                      (found.trouble.empty() ? "" : " (" + found.trouble + ")") + "; " + kUseCpu);
  }
  if (count < ranks) {
    throw ConfigError("device.kind: " + std::to_string(ranks) +
                      " ranks run on this machine, which has " + std::to_string(count) +
                      " GPUs; start one rank per GPU; " + kUseCpu);
  }
  for (int32_t i = 0; i < ranks; ++i) {
    const CudaDevice& gpu = found.usable[static_cast<size_t>(i)];
    if (gpu.compute_major >= kOldestCompute) continue;
    throw ConfigError("device.kind: GPU " + std::to_string(i) + ", " + gpu.name +
                      ", has compute capability " + std::to_string(gpu.compute_major) + "." +
                      std::to_string(gpu.compute_minor) + "; this build supports " +
                      std::to_string(kOldestCompute) + ".0 and newer; " + kUseCpu);
  }
}

}  // namespace longshore
