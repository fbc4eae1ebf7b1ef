#include "trainer/run/step_seconds.h"

#include <algorithm>
#include <deque>
#include <fstream>

#include "base/errors.h"
#include "base/json.h"

namespace longshore {
namespace {

constexpr size_t kSteps = 100;
constexpr JsonLimits kLineLimits{.max_bytes = kMiB, .max_values = 10'000};

}  // namespace

std::optional<double> measured_step_seconds(const std::string& metrics_path) {
  std::ifstream file(metrics_path);
  std::deque<double> seconds;
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"step\"") == std::string::npos) continue;
    try {
      const Json object = parse_json(line, kLineLimits, metrics_path);
      if (object.at("kind") != "step") continue;
      seconds.push_back(object.at("seconds").get<double>());
    } catch (const Error&) {
      continue;  // a torn last line
    } catch (const Json::exception&) {
      continue;
    }
    if (seconds.size() > kSteps) seconds.pop_front();
  }
  if (seconds.empty()) return std::nullopt;
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

}  // namespace longshore
