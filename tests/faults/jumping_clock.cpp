// A clock that jumps, for a program that is started with it in LD_PRELOAD: each call for the time
// of day returns a time years away from the last one, back and forth. Clocks that measure durations
// are the machine's own. Test code, any thread.
#include <dlfcn.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <ctime>

namespace {

constexpr std::array<time_t, 5> kYearsAway = {0, 3, -2, 11, -7};
constexpr time_t kYear = 365 * 24 * 3600;

time_t jump() {
  static std::atomic<unsigned> looks{0};
  return kYearsAway[looks++ % kYearsAway.size()] * kYear;
}

template <typename Function>
Function* of_the_machine(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, struct timespec* now) noexcept {
  static auto* const real = of_the_machine<int(clockid_t, struct timespec*)>("clock_gettime");
  const int result = real(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += jump();
  return result;
}

int gettimeofday(struct timeval* __restrict now, void* __restrict zone) noexcept {
  static auto* const real = of_the_machine<int(struct timeval*, void*)>("gettimeofday");
  const int result = real(now, zone);
  now->tv_sec += jump();
  return result;
}

time_t time(time_t* now) noexcept {
  static auto* const real = of_the_machine<time_t(time_t*)>("time");
  const time_t jumped = real(nullptr) + jump();
  if (now != nullptr) *now = jumped;
  return jumped;
}
}
