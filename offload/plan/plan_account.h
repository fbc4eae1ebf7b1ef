// PlanAccount: a plan's use of one memory, line by line, and the limit. Plain values.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"

namespace longshore {

struct PlanLine {
  std::string name;
  std::string detail;
  Bytes bytes = 0;
  bool exact = true;  // false: a bound or an estimate
};

struct PlanAccount {
  std::vector<PlanLine> lines;  // sum to total
  Bytes total = 0;
  Bytes limit = 0;
  bool limit_auto = false;

  bool within_limit() const { return total <= limit; }
};

}  // namespace longshore
