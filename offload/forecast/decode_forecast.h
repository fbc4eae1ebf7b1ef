// decode_forecast: the speed of decoding with states, from a plan and a machine's rates. Pure
// functions, without a device.
#pragma once

#include <optional>
#include <string>

#include "offload/forecast/step_forecast.h"

namespace longshore {

// Returns the new tokens per second of all sequences together; empty if a rate is missing. An
// estimate: a token of every sequence takes one read of the weights that its rows use and of half
// the states from the device's memory, or the products of these rows if that takes longer, and the
// copy of weights that do not stay, which overlaps with computation on a GPU.
std::optional<double> decoding_tokens_per_second(const TierPlan& plan, const ModelSpec& model,
                                                 const ForecastInputs& inputs,
                                                 const MachineRates& rates);

// Returns decoding_text with the speed, where it is known.
std::string describe_decoding(const TierPlan& plan, std::optional<double> tokens_per_second);

}  // namespace longshore
