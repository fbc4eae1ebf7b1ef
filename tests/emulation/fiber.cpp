#include "tests/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>

#include "base/errors.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
// This file is not instrumented by ThreadSanitizer, so it cannot ask the compiler.
#if LONGSHORE_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// Saves the callee-saved registers on the stack and its pointer at *from, and continues at `to`.
// (The switch of ucontext makes a system call each time.)
extern "C" void longshore_switch_stack(void** from, void* to);
asm(R"(
.text
.type longshore_switch_stack, @function
longshore_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size longshore_switch_stack, .-longshore_switch_stack
)");

namespace longshore::emulation {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kSavedRegisters = 6;

Fiber* entering = nullptr;  // read by the first lines on a new stack

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LONGSHORE_CHECK(memory != MAP_FAILED) << "a fiber's stack";
  stack_ = static_cast<std::byte*>(memory);
#if LONGSHORE_TSAN
  tsan_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if LONGSHORE_TSAN
  __tsan_destroy_fiber(tsan_);
#endif
  munmap(stack_, kStackBytes);
}

void Fiber::start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);  // frames that never returned
#endif
  // The stack looks as if enter() had been called and had saved its registers: a return address
  // lies above, which keeps the stack aligned as calls leave it.
  auto* top = reinterpret_cast<uintptr_t*>(stack_ + kStackBytes) - 2;
  *top = reinterpret_cast<uintptr_t>(&Fiber::enter);
  for (size_t i = 0; i < kSavedRegisters; ++i) *--top = 0;
  paused_at_ = top;
}

void Fiber::enter() {
  Fiber* const self = entering;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
#endif
  self->body_(self->argument_);
  __builtin_trap();
}

void Fiber::resume() {
  entering = this;
#if LONGSHORE_TSAN
  tsan_caller_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes);
#endif
  longshore_switch_stack(&resumed_at_, paused_at_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::pause() {
#if LONGSHORE_TSAN
  __tsan_switch_to_fiber(tsan_caller_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, caller_stack_, caller_stack_bytes_);
#endif
  longshore_switch_stack(&paused_at_, resumed_at_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &caller_stack_, &caller_stack_bytes_);
#endif
}

bool Fiber::holds(const void* address) const {
  return address >= stack_ && address < stack_ + kStackBytes;
}

}  // namespace longshore::emulation
