#include "trainer/eval_tracker.h"

#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/errors.h"
#include "base/json.h"

namespace longshore {

bool EvalTracker::record(double loss) {
  if (std::isfinite(loss) && loss < best_loss_) {
    best_loss_ = loss;
    without_gain_ = 0;
    return true;
  }
  ++without_gain_;
  return false;
}

EvalTracker EvalTracker::of_metrics(const std::string& path) {
  EvalTracker tracker;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || object.value("kind", "") != "eval") continue;
    const auto loss = object.find("loss");
    const bool known = loss != object.end() && loss->is_number();
    tracker.record(known ? loss->get<double>() : std::nan(""));
  }
  return tracker;
}

std::string EvalTracker::text() const {
  char text[64];
  std::snprintf(text, sizeof text, "%a %lld", best_loss_, static_cast<long long>(without_gain_));
  return text;
}

EvalTracker EvalTracker::of_text(const std::string& text) {
  EvalTracker tracker;
  long long without_gain = 0;
  LONGSHORE_CHECK(std::sscanf(text.c_str(), "%la %lld", &tracker.best_loss_, &without_gain) == 2)
      << text;
  tracker.without_gain_ = without_gain;
  return tracker;
}

}  // namespace longshore
