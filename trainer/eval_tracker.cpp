#include "trainer/eval_tracker.h"

#include <cmath>
#include <cstdio>

#include "base/errors.h"
#include "trainer/directory/metrics_reader.h"

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
  read_metrics(path, {"eval"}, [&tracker](const MetricsLine& line) {
    tracker.record(line.number("loss").value_or(std::nan("")));
    return true;
  });
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
