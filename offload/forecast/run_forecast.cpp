#include "offload/forecast/run_forecast.h"

namespace longshore {
namespace {

constexpr double kSecondsOfHour = 3600.0;

std::optional<double> over(double bytes, double rate) {
  if (bytes == 0.0) return 0.0;
  return rate > 0.0 ? std::optional(bytes / rate) : std::nullopt;
}

// Counts an event at the end and after every `every` steps before it.
int64_t times_in(int64_t steps, int64_t every) {
  return every > 0 ? (steps - 1) / every + 1 : 1;
}

}  // namespace

std::optional<double> RunForecast::first_step() const {
  if (!read_model || !pin_memory) return std::nullopt;
  return *read_model + *pin_memory;
}

RunForecast forecast_run(const StepForecast& step, const TierPlan& plan, const RunLength& length,
                         const MachineRates& rates, double watts, int32_t ranks_per_node) {
  RunForecast forecast;
  forecast.step = step;
  forecast.read_model = over(static_cast<double>(length.weight_bytes), rates.files_read);
  const double pinned =
      static_cast<double>(plan.host.arena + plan.host.gradients + plan.host.inputs) *
      ranks_per_node;
  forecast.pin_memory = over(pinned, rates.pin);
  forecast.checkpoint = over(static_cast<double>(plan.checkpoint_bytes), rates.files_written);
  if (!step.known() || length.steps == 0) return forecast;
  forecast.checkpoints = times_in(length.steps, length.checkpoint_steps);
  double seconds = step.seconds * static_cast<double>(length.steps);
  if (length.evaluates) {
    forecast.evaluations = times_in(length.steps, length.evaluation_steps);
    if (length.evaluation_sequences > 0) {
      forecast.evaluation = step.forward_seconds *
                            static_cast<double>(length.evaluation_sequences) /
                            static_cast<double>(length.sequences_per_step);
    }
    seconds += forecast.evaluation.value_or(0.0) * static_cast<double>(forecast.evaluations);
  }
  seconds += forecast.checkpoint.value_or(0.0) * static_cast<double>(forecast.checkpoints);
  seconds += forecast.first_step().value_or(0.0);
  forecast.run = seconds;
  if (watts > 0.0) forecast.watt_hours = watts * seconds / kSecondsOfHour;
  return forecast;
}

}  // namespace longshore
