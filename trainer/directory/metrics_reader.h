// MetricsReader: the lines of <run.dir>/metrics.jsonl, as any reader may take them. What stands
// there is believed no further than its types: a line that is torn, longer than a line can be, no
// object, or of a kind that is no text, is passed over. One thread, bounded memory.
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
  std::optional<int64_t> step;  // none where the line has none, or no whole number from 0 on
  const Json& object;
  Bytes end = 0;  // where the next line begins

  // The member where it is a finite number.
  std::optional<double> number(const char* key) const;
};

// Every whole line of one of these kinds, from the first on, until `use` returns false. A missing
// file has none; IoError for what is no regular file.
void read_metrics(const std::string& path, const std::vector<std::string_view>& kinds,
                  const std::function<bool(const MetricsLine&)>& use);

// The greatest step of a step line; 0 without one.
int64_t last_step_of_metrics(const std::string& path);

}  // namespace longshore
