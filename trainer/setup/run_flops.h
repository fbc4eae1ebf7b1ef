// What a run's units compute, in operations, for forecasts of its time; and by which text a unit
// that was measured is known. Pure functions of the model.
#pragma once

#include <string>

#include "offload/engine/probe/one_unit_model.h"
#include "offload/forecast/step_forecast.h"
#include "trainer/setup/known_rates.h"

namespace longshore {

// Of one position, in documents of that length.
UnitFlops flops_of_unit(const Model& model, UnitId unit, int64_t document);

// A unit of the run on its device: what decides how long it takes, but the number of positions.
std::string text_of_unit(const MeasuredRun& setup, UnitId unit);
// What decides how long the run's lanes take, and by which measurements that is planned: what a run
// took of its plan corrects these, and no others.
std::string text_of_run(const MeasuredRun& setup, const KnownRates& known);

// From the seconds of a run of the probe to those of its passes.
UnitSeconds split_of_probe(const OneUnitModel& model, double seconds);

// All that a forecast of the run needs beside plan and rates. `known`: what was measured of its
// units; nullptr on other machines.
ForecastInputs forecast_inputs(const MeasuredRun& setup, const Model& model,
                               const KnownRates* known);

}  // namespace longshore
