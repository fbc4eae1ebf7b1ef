// machine_file: a machine as TOML text: cores, memory, GPUs, drives, rates, and the sources of the
// numbers. `check machine --save` writes it, `plan --machine` reads it, and commands keep rates in
// it. Rates are in GB/s (1e9 bytes) and TFLOP/s. Pure functions. The machines of config/machines
// are embedded as such texts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/texts.h"
#include "offload/forecast/machine_rates.h"
#include "offload/plan/machine.h"

namespace longshore {

struct DescribedMachine {
  std::string name;
  Machine machine;
  MachineRates rates;
  double watts = 0.0;                // of the whole machine under load; 0: unknown
  std::vector<std::string> sources;  // of the numbers, with the factors of estimates
  std::string program = {};          // the build that measured it
};

std::string machine_to_toml(const DescribedMachine& machine);
// Parses a text; throws ConfigError with every problem and its position.
DescribedMachine parse_machine(const std::string& text, const std::string& origin);

// Returns the machines of config/machines by name ("rtx-4090"), as texts for parse_machine.
std::span<const NamedText> common_machines();

}  // namespace longshore
