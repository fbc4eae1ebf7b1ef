// rates_text: a machine's rates as text and as JSON. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/forecast/machine_rates.h"

namespace longshore {

// Prints a line for each known rate.
std::string format_rates(const MachineRates& rates);
// Returns all rates in bytes and operations per second; unknown ones are null.
nlohmann::ordered_json rates_to_json(const MachineRates& rates);

}  // namespace longshore
