// TimerRun: runs a TimedStep on one or several ranks: the real executor over one thread for each
// lane, the real stage ring with tiny slots; the work of every operation is to sleep. Ranks are
// threads of this process; a gather or a reduction begins when all have come to it. Main thread.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "bench/lab/timed_step.h"

namespace longshore {

struct TimerRanks {
  int32_t ranks = 1;
  int32_t shard_ranks = 0;  // that gather from each other; 0: all
  // Drives, and what each rank's operations take while the drives serve all ranks: with fewer of
  // them at it those are served faster. Else every rank has drives of its own.
  bool share_drives = false;
  // By rank, of what computation takes on the rank that has most; empty: all have as much.
  std::vector<double> compute = {};
};

class TimerRun {
 public:
  TimerRun(const TimedStep* step, TimerRanks ranks);  // `step` must outlive it
  ~TimerRun();

  // One step on all ranks, in seconds, from the first rank's start to the last rank's end.
  double step_seconds();

 private:
  class Rank;
  class Meeting;
  class Drive;

  Meeting& gather_of(size_t rank);
  void abandon();

  TimerRanks how_;
  std::vector<std::unique_ptr<Meeting>> gathers_;  // by group
  // Of all ranks: a reduction, the step's totals, its commit.
  std::array<std::unique_ptr<Meeting>, 3> meetings_;
  std::vector<std::unique_ptr<Drive>> reading_, writing_;  // one for each rank, or one
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace longshore
