#include "trainer/directory/step_seconds.h"

#include <deque>
#include <vector>

#include "base/median.h"
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
  return median_of(std::vector<double>(seconds.begin(), seconds.end()));
}

}  // namespace longshore
