// Which device a run computes on: `device.kind = "auto"` becomes the GPU if there is one, and a GPU
// that cannot be used ends the run with what to do; it never becomes the CPU silently. Called once,
// before anything is made; main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "config/run_config.h"
#include "device/cuda_runtime.h"

namespace longshore {

struct FoundGpus {
  std::vector<CudaDevice> usable;    // by CUDA
  std::vector<std::string> present;  // NVIDIA's GPUs on the PCI bus
  std::string trouble;               // why CUDA can use none of them; empty: nothing is wrong
};
FoundGpus find_gpus(const std::string& pci_devices = "/sys/bus/pci/devices");

// What the run in run.dir computes on, if it goes on from there; `auto` of its run file is the CPU.
std::optional<DeviceSection::Kind> begun_on(const RunConfig& config);

// Sets device.kind where it is `auto`. ConfigError where a GPU is here that CUDA cannot use, or a
// run that began on a GPU has none.
void settle_device(RunConfig& config, const FoundGpus& found);
// All ranks: ConfigError, on all of them, where a rank of this machine has no GPU of its own.
// `gpu`: this rank's among those that it sees.
void agree_on_gpus(World& world, const RunConfig& config, const FoundGpus& found, int gpu);
// ConfigError unless `ranks` ranks of this machine can compute on what device.kind says.
void require_gpus(const RunConfig& config, const FoundGpus& found, int32_t ranks);

}  // namespace longshore
