// AwakeClock: a clock for time limits that stands still while this process is suspended: by
// SIGSTOP, by a batch system, by a machine that sleeps. After SIGCONT a steady clock has passed
// every limit, although no rank had time to answer. Any thread.
//
// It needs a thread that ticks at least every kAwakeTick. A longer pause between ticks counts as a
// suspension, also if the thread only got no core; so limits can become longer but never shorter.
// Without such a thread it is a steady clock.
#pragma once

#include <chrono>

namespace longshore {

inline constexpr std::chrono::milliseconds kAwakeTick{1000};

class AwakeClock {
 public:
  // These names are those of a clock of the standard library.
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<AwakeClock, duration>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept;
  // Records that this process is running. Call it while a Ticking object exists.
  static void tick() noexcept;

  // A thread that calls tick() holds one; several threads may.
  class Ticking {
   public:
    Ticking() noexcept;
    Ticking(const Ticking&) = delete;
    Ticking& operator=(const Ticking&) = delete;
    ~Ticking();
  };
};

// AwakeTime: the arithmetic of AwakeClock over the times that its caller passes. One thread.
class AwakeTime {
 public:
  using Duration = AwakeClock::duration;

  void begin(Duration steady);
  void end(Duration steady);
  void tick(Duration steady);
  // Returns the time without suspensions. It never runs backwards.
  Duration at(Duration steady) const;

 private:
  int tickers_ = 0;
  Duration last_tick_{0};
  Duration suspended_{0};
};

}  // namespace longshore
