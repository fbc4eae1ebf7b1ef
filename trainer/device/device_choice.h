// Resolves `device.kind`. "auto" is the GPU if one exists. An unusable GPU ends the
// run with advice instead of a silent switch to the CPU. Called once before any allocation; main
// thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/world/world.h"
#include "config/run_config.h"
#include "device/cuda_runtime.h"

namespace longshore {

struct FoundGpus {
  std::vector<CudaDevice> usable;    // usable by CUDA
  std::vector<std::string> present;  // NVIDIA GPUs on the PCI bus
  std::string trouble;               // why CUDA can use no GPU; empty: no error
};
FoundGpus find_gpus(const std::string& pci_devices = "/sys/bus/pci/devices");

// Returns the device of the run in run.dir if the new start resumes it; "auto" there means the CPU.
std::optional<DeviceSection::Kind> begun_on(const RunConfig& config);

// Resolves device.kind = "auto". ConfigError if CUDA cannot use a local GPU, or if a run that
// started on a GPU finds none.
void resolve_device(RunConfig& config, const FoundGpus& found);
// Throws ConfigError on all ranks of a machine unless each of them has its own GPU. `gpu` is this
// rank's index among its visible GPUs. Collective.
void agree_on_gpus(World& world, const RunConfig& config, const FoundGpus& found, int gpu);
// ConfigError unless this machine has a usable device of device.kind for each of `ranks` ranks.
void require_gpus(const RunConfig& config, const FoundGpus& found, int32_t ranks);

}  // namespace longshore
