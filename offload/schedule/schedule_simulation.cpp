#include "offload/schedule/schedule_simulation.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {

SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const double> seconds) {
  LONGSHORE_CHECK(seconds.size() == schedule.ops.size());
  SimulatedPass pass;
  std::array<int32_t, kLaneCount> last;  // of each lane
  last.fill(-1);
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    const auto lane = static_cast<size_t>(lane_of(op.kind));
    SimulatedOp& now = pass.ops.emplace_back();
    const auto wait_for = [&](int32_t other) {
      if (other < 0) return;
      const double end = pass.ops.at(static_cast<size_t>(other)).end;
      if (now.held_by >= 0 && end <= now.begin) return;
      now.begin = end;
      now.held_by = other;
    };
    wait_for(last[lane]);
    for (int32_t before : op.after) {
      LONGSHORE_CHECK(before < static_cast<int32_t>(i)) << "op " << i << " waits for op " << before;
      wait_for(before);
    }
    LONGSHORE_CHECK(seconds[i] >= 0.0) << "op " << i << " takes " << seconds[i] << " s";
    now.end = now.begin + seconds[i];
    pass.busy[lane] += seconds[i];
    pass.seconds = std::max(pass.seconds, now.end);
    last[lane] = static_cast<int32_t>(i);
  }
  return pass;
}

std::vector<int32_t> critical_path(const SimulatedPass& pass) {
  if (pass.ops.empty()) return {};
  const auto last = std::ranges::max_element(pass.ops, {}, &SimulatedOp::end);
  std::vector<int32_t> path;
  for (auto op = static_cast<int32_t>(last - pass.ops.begin()); op >= 0;
       op = pass.ops[static_cast<size_t>(op)].held_by) {
    path.push_back(op);
  }
  std::ranges::reverse(path);
  return path;
}

}  // namespace longshore
