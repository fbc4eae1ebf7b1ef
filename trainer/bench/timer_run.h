// TimerRun: runs a TimedStep on one or two ranks: the real executor over one thread for each lane,
// the real stage ring with tiny slots; the work of every operation is to sleep. Ranks are threads
// of this process; a gather or a reduction begins when both have come to it. Main thread.
#pragma once

#include <memory>
#include <vector>

#include "trainer/bench/timed_step.h"

namespace longshore {

class TimerRun {
 public:
  TimerRun(const TimedStep* step, int32_t ranks);  // `step` must outlive it
  ~TimerRun();

  // One step on all ranks, in seconds, from the first rank's start to the last rank's end.
  double step_seconds();

 private:
  class Rank;
  class Meeting;

  std::unique_ptr<Meeting> meetings_[4];  // gather, reduce, the step's totals, its commit
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace longshore
