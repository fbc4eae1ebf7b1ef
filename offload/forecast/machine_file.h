// MachineFile: a machine as a TOML text: its cores, memory, cards and drives, its rates, and
// where the figures come from. `doctor --save` writes one, `plan --machine` reads one,
// and so are rates kept from one command to the next. Rates are in GB/s (1e9 bytes) and TFLOP/s.
// Pure functions.
#pragma once

#include <string>
#include <vector>

#include "offload/forecast/machine_rates.h"
#include "offload/plan/machine.h"

namespace longshore {

struct DescribedMachine {
  std::string name;
  Machine machine;
  MachineRates rates;
  double watts = 0.0;                // of the whole machine at work; 0: not known
  std::vector<std::string> sources;  // of what it says; by which factors rates were estimated
  std::string program = {};          // the build that measured it
};

std::string machine_to_toml(const DescribedMachine& machine);
// ConfigError with every problem and its place.
DescribedMachine parse_machine(const std::string& text, const std::string& origin);

}  // namespace longshore
