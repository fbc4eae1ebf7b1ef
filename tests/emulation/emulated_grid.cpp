#include "tests/emulation/emulated_grid.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "tests/emulation/running_thread.h"

#if LONGSHORE_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace longshore::emulation {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kMostThreads = 1024;

enum class At { kRunning, kWarp, kBlock, kEnd };

struct Thread {
  Fiber fiber;
  At at = At::kRunning;
  unsigned index = 0;
  unsigned barriers = 0;
  unsigned exchanges = 0;
  // The values that a thread gives to its warp, in two slots used in rotation.
  float given[2] = {};
};

struct Grid {
  Extent blocks, block;
  unsigned threads = 0;
  void (*call)(const void*) = nullptr;
  const void* argument = nullptr;
  std::vector<std::unique_ptr<Thread>> all;  // reused by every block and launch
  Thread* running = nullptr;
  RunningThread seen;
  std::string fault;  // empty without a fault
  unsigned left_out_barrier = 0;
  unsigned barriers = 0;
};

Grid& grid() {
  static Grid grid;
  return grid;
}

// Tells ThreadSanitizer that the accesses before order_before() come before those after
// order_after() of the same point in another thread. There are four points: a warp may reach its
// next point before another warp has left this one, and must not be ordered before it.
enum Point : unsigned { kBegin, kEnd, kBarriers };
Point barrier_now() {
  return static_cast<Point>(kBarriers + grid().seen.moment.epoch % 2);
}
[[maybe_unused]] char points[4];
void order_before([[maybe_unused]] Point point) {
#if LONGSHORE_TSAN
  __tsan_release(&points[point]);
#endif
}
void order_after([[maybe_unused]] Point point) {
#if LONGSHORE_TSAN
  __tsan_acquire(&points[point]);
#endif
}

// Pauses a thread. It may never resume: after a failure in its block the others do not continue.
void pause(Thread& self) {
  order_before(kEnd);
  self.fiber.pause();
}

void run_thread(void* thread) {
  order_after(kBegin);
  grid().call(grid().argument);
  auto* const self = static_cast<Thread*>(thread);
  self->at = At::kEnd;
  pause(*self);
}

void blame(unsigned thread, const std::string& what) {
  const Extent block = grid().block;
  grid().fault = "block " + std::to_string(block.x) +
                 (grid().blocks.y > 1 ? "," + std::to_string(block.y) : "") + ", thread " +
                 std::to_string(thread) + " " + what;
}

void go_on(Thread& thread) {
  Grid& g = grid();
  thread.at = At::kRunning;
  g.running = &thread;
  g.seen.moment.thread = thread.index;
  g.seen.fiber = &thread.fiber;
  thread.fiber.resume();
  g.running = nullptr;
}

unsigned count(unsigned begin, unsigned end, At at) {
  unsigned found = 0;
  for (unsigned i = begin; i < end; ++i) found += grid().all[i]->at == at ? 1 : 0;
  return found;
}

// Runs a warp until its threads wait for the block or have ended.
void run_warp(unsigned begin) {
  Grid& g = grid();
  bool fresh = true;  // all of the warp runs, from the block's start or a barrier
  for (;;) {
    for (unsigned i = begin; i < begin + kLanes; ++i) {
      if (fresh ? g.all[i]->at != At::kEnd : g.all[i]->at == At::kWarp) go_on(*g.all[i]);
      if (!g.fault.empty()) return;
    }
    fresh = false;
    const unsigned waiting = count(begin, begin + kLanes, At::kWarp);
    if (waiting == 0) return;
    if (waiting < kLanes) return blame(begin, "and its warp do not all come to an exchange");
  }
}

void run_block() {
  Grid& g = grid();
  for (unsigned i = 0; i < g.threads; ++i) {
    Thread& thread = *g.all[i];
    thread.at = At::kRunning;
    thread.index = i;
    thread.barriers = thread.exchanges = 0;
    thread.fiber.start(run_thread, &thread);
  }
  order_before(kBegin);
  for (unsigned ended = 0; ended < g.threads; ++g.seen.moment.epoch) {
    for (unsigned warp = 0; warp < g.threads && g.fault.empty(); warp += kLanes) run_warp(warp);
    if (!g.fault.empty()) break;
    ended = count(0, g.threads, At::kEnd);
    if (ended > 0 && ended < g.threads) {
      unsigned waiting = 0;
      while (g.all[waiting]->at != At::kBlock) ++waiting;
      blame(waiting, "waits at a barrier, others of its block have ended");
      break;
    }
  }
  order_after(kEnd);
  g.barriers = g.all[0]->barriers;
}

}  // namespace

void run_grid(Extent blocks, unsigned threads, void (*call)(const void*), const void* argument) {
  LONGSHORE_CHECK(threads % kLanes == 0 && threads > 0 && threads <= kMostThreads) << threads;
  Grid& g = grid();
  g.blocks = blocks;
  g.threads = threads;
  g.call = call;
  g.argument = argument;
  g.fault.clear();
  while (g.all.size() < threads) g.all.push_back(std::make_unique<Thread>());
  ++g.seen.moment.launch;
  g.seen.moment.block = 0;
  for (g.block.y = 0; g.block.y < blocks.y; ++g.block.y) {
    for (g.block.x = 0; g.block.x < blocks.x; ++g.block.x) {
      g.seen.moment.epoch = 0;
      run_block();
      if (!g.fault.empty()) throw KernelFault(std::exchange(g.fault, {}));
      ++g.seen.moment.block;
    }
  }
}

void leave_out_barrier(unsigned nth) {
  grid().left_out_barrier = nth;
}
unsigned barriers_of_last_launch() {
  return grid().barriers;
}

Extent thread_index() {
  return {grid().running->index, 0, 0};
}
Extent block_index() {
  return grid().block;
}
Extent block_size() {
  return {grid().threads, 1, 1};
}
Extent grid_size() {
  return grid().blocks;
}

void wait_for_block() {
  Thread& self = *grid().running;
  if (++self.barriers == grid().left_out_barrier) return;
  const Point barrier = barrier_now();
  order_before(barrier);
  self.at = At::kBlock;
  pause(self);
  order_after(barrier);
}

float exchange_xor(unsigned mask, float value, int lanes) {
  Thread& self = *grid().running;
  if (mask != 0xffffffffu) fail("exchanges with a part of its warp");
  const unsigned turn = self.exchanges++ % 2;
  self.given[turn] = value;
  self.at = At::kWarp;
  pause(self);
  return grid().all[self.index ^ static_cast<unsigned>(lanes)]->given[turn];
}

void fail(const std::string& what) {
  Thread& self = *grid().running;
  blame(self.index, what);
  pause(self);
  __builtin_trap();  // a failed fiber is not resumed
}

const RunningThread* running_thread() {
  return grid().running == nullptr ? nullptr : &grid().seen;
}

}  // namespace longshore::emulation
