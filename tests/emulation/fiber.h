// Fiber: a function on a stack of its own that pauses where it waits and resumes there. A switch
// takes nanoseconds, one of threads microseconds. It runs on the thread that resumes it.
// AddressSanitizer and ThreadSanitizer are notified of each switch; ThreadSanitizer sees fibers as
// threads, and a switch orders nothing.
#pragma once

#include <cstddef>

namespace longshore::emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the next resume() call body(argument) on an empty stack, whatever ran there before.
  // `body` does not return: it ends in a pause() that is never resumed.
  void start(void (*body)(void*), void* argument);
  // Returns at the next pause().
  void resume();
  // Returns to the caller of resume(); called on the fiber.
  void pause();

  bool holds(const void* address) const;  // whether it is on the stack

 private:
  static void enter();

  std::byte* stack_ = nullptr;
  void* paused_at_ = nullptr;   // the stack pointer while it does not run
  void* resumed_at_ = nullptr;  // the caller's while it runs
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* tsan_ = nullptr;  // ThreadSanitizer's handles of the fiber and its caller
  void* tsan_caller_ = nullptr;
  const void* caller_stack_ = nullptr;  // for AddressSanitizer
  size_t caller_stack_bytes_ = 0;
};

}  // namespace longshore::emulation
