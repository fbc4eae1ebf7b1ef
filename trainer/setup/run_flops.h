// The operations of a run's units, for time forecasts, and the texts under which
// measurements are stored. Pure functions of the model.
#pragma once

#include <string>

#include "offload/engine/probe/probe_inputs.h"
#include "offload/forecast/step_forecast.h"
#include "trainer/setup/known_rates.h"

namespace longshore {

// Returns the operations of one position in documents of that length.
UnitFlops flops_of_unit(const Model& model, UnitId unit, int64_t document);

// Returns the text of all that determines the unit's time, except the number of positions.
std::string text_of_unit(const MeasuredRun& setup, UnitId unit);
// Returns a hash of all that determines the times of the run's lanes and of the measurements behind
// the forecast. Factors learned from a run apply only to runs with an equal hash.
std::string text_of_run(const MeasuredRun& setup, const KnownRates& known);

// Splits the seconds of a probe run into forward and backward.
UnitSeconds split_of_probe(const OneUnitModel& model, double seconds);

// Returns all that a forecast needs except plan and rates. `known` has the unit times measured on
// the local machine; nullptr if the run is for another machine.
ForecastInputs forecast_inputs(const MeasuredRun& setup, const Model& model,
                               const KnownRates* known);

}  // namespace longshore
