#include "trainer/directory/step_seconds.h"

#include <algorithm>
#include <deque>

#include "trainer/directory/metrics_reader.h"

namespace longshore {
namespace {

constexpr size_t kSteps = 100;

}  // namespace

std::optional<double> measured_step_seconds(const std::string& metrics_path) {
  std::deque<double> seconds;
  read_metrics(metrics_path, {"step"}, [&](const MetricsLine& line) {
    const std::optional<double> taken = line.number("seconds");
    if (taken) seconds.push_back(*taken);
    if (seconds.size() > kSteps) seconds.pop_front();
    return true;
  });
  if (seconds.empty()) return std::nullopt;
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

}  // namespace longshore
