#include "base/awake_clock.h"

#include <algorithm>

#include "base/mutex.h"

namespace longshore {
namespace {

// A process has one state. It is never destroyed, because threads may outlive static objects.
struct State {
  Mutex mutex;
  AwakeTime time LONGSHORE_GUARDED_BY(mutex);
};

State& state() {
  static State* const made = new State;
  return *made;
}

AwakeTime::Duration steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

AwakeClock::time_point AwakeClock::now() noexcept {
  State& shared = state();
  const MutexLock lock(shared.mutex);
  return time_point(shared.time.at(steady_now()));
}

void AwakeClock::tick() noexcept {
  State& shared = state();
  const MutexLock lock(shared.mutex);
  shared.time.tick(steady_now());
}

AwakeClock::Ticking::Ticking() noexcept {
  State& shared = state();
  const MutexLock lock(shared.mutex);
  shared.time.begin(steady_now());
}

AwakeClock::Ticking::~Ticking() {
  State& shared = state();
  const MutexLock lock(shared.mutex);
  shared.time.end(steady_now());
}

void AwakeTime::begin(Duration steady) {
  if (tickers_ > 0) {
    tick(steady);
  } else {
    last_tick_ = steady;
  }
  ++tickers_;
}

void AwakeTime::end(Duration steady) {
  tick(steady);
  --tickers_;
}

void AwakeTime::tick(Duration steady) {
  // Both here and in `at` the clock stops kAwakeTick after the last tick.
  suspended_ += std::max(Duration(0), steady - last_tick_ - Duration(kAwakeTick));
  last_tick_ = steady;
}

AwakeTime::Duration AwakeTime::at(Duration steady) const {
  const Duration seen = tickers_ > 0 ? std::min(steady, last_tick_ + Duration(kAwakeTick)) : steady;
  return seen - suspended_;
}

}  // namespace longshore
