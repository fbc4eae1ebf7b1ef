// common_machines: machines that are known by name, from the data sheets of GPUs, processors and a
// drive, and the estimate of a machine's rates from them. No rate was measured. A new GPU is one
// row of a table. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "offload/forecast/machine_rates.h"

namespace longshore {

// Changes of a known or described machine.
struct MachineChanges {
  int32_t gpus = 0;            // 0: as described
  Bytes memory = 0;            // of the host, installed; 0: as described
  double drive_read = 0.0;     // bytes per second by a data sheet; 0: as described
  double drive_written = 0.0;  // 0: in the proportion of the known drive

  bool any() const { return gpus > 0 || memory > 0 || drive_read > 0.0; }
};

// Returns the machine of a name as people write it: "rtx-4090", "RTX 4090", "4090", "NVIDIA GeForce
// RTX 4070 Ti SUPER", "a100-80gb", "2x-rtx-3090", "4x 4090". Returns nullopt for an unknown
// machine. Throws ConfigError if several GPUs have the name, or if the changes are impossible.
std::optional<DescribedMachine> common_machine(std::string_view written,
                                               const MachineChanges& changes = {});

// Returns the names of the machines, in the spelling of messages.
std::vector<std::string> common_machine_names();
// Returns the known machine that the name resembles most; empty if none does.
std::string nearest_machine(std::string_view written);

// Changes a machine that a file describes. Its rates stay, so there is no forecast for a number of
// GPUs for which the file has no collective rates. Throws ConfigError if GPUs are added to a
// machine without a GPU.
void change_machine(DescribedMachine& described, const MachineChanges& changes);

// Parses the rates of a drive: "7GB/s", or "7GB/s,6GB/s" as read and written. Throws ConfigError.
void parse_drive_rates(const std::string& text, MachineChanges& changes);

}  // namespace longshore
