// Reads the lines of <run.dir>/metrics.jsonl without trusting them. It skips lines
// that are torn, too long, no JSON object, or whose kind is no text. One thread; bounded memory.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"

namespace longshore {

struct MetricsLine {
  std::string kind;
  std::optional<int64_t> step;  // empty if missing or not a whole number >= 0
  const Json& object;
  Bytes end = 0;  // offset of the next line

  // Returns the member if it is a finite number.
  std::optional<double> number(const char* key) const;
};

// Calls `use` for every whole line of the given kinds in order, until it returns false. A missing
// file has no lines. IoError if the path is not a regular file.
void read_metrics(const std::string& path, const std::vector<std::string_view>& kinds,
                  const std::function<bool(const MetricsLine&)>& use);

// Returns the greatest step of all step lines; 0 if there are none.
int64_t last_step_of_metrics(const std::string& path);

// The duration of a run's steps, from its metrics file. Free function; any thread.

// Returns the median in seconds over the file's last 100 steps; empty if the file is missing or has
// no step.
std::optional<double> measured_step_seconds(const std::string& metrics_path);

}  // namespace longshore
