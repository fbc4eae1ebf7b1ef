// Fiber: a function on a stack of its own, which pauses where it waits and goes on from there: a
// switch costs nanoseconds, where threads cost microseconds each. Everything happens on the thread
// that resumes it. AddressSanitizer and ThreadSanitizer are told of each switch; to the latter
// fibers are threads, and a switch orders nothing.
#pragma once

#include <cstddef>

namespace longshore::emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls body(argument) on an empty stack; what ran there before is forgotten.
  // `body` does not return: it ends by a pause() that is never resumed.
  void start(void (*body)(void*), void* argument);
  // Returns at the next pause().
  void resume();
  // Called on the fiber: back to where it was resumed.
  void pause();

  bool holds(const void* address) const;  // on its stack

 private:
  static void enter();

  std::byte* stack_ = nullptr;
  void* paused_at_ = nullptr;   // the stack pointer while it does not run
  void* resumed_at_ = nullptr;  // the caller's while it runs
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* tsan_ = nullptr;  // ThreadSanitizer's names of it and of its caller
  void* tsan_caller_ = nullptr;
  const void* caller_stack_ = nullptr;  // AddressSanitizer's
  size_t caller_stack_bytes_ = 0;
};

}  // namespace longshore::emulation
