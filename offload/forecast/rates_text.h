// A machine's rates for people and for programs. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/forecast/machine_rates.h"

namespace longshore {

// Lines; what is not known has none.
std::string format_rates(const MachineRates& rates);
// All rates, in bytes and operations a second; what is not known is null.
nlohmann::ordered_json rates_to_json(const MachineRates& rates);

}  // namespace longshore
