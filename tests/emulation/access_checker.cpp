#include "tests/emulation/access_checker.h"

#include <string>
#include <vector>

#include "base/errors.h"
#include "tests/emulation/emulated_grid.h"
#include "tests/emulation/running_thread.h"

// The linker's name for the start of zero-initialized memory, where `__shared__` variables lie.
extern "C" char __bss_start[];
extern "C" char _end[];

namespace longshore::emulation {
namespace {

constexpr uint32_t kMany = ~0u;

struct Touched {
  Moment write, read;  // `read` of kMany: several blocks or threads
};

struct Watched {
  std::string name;
  const char* begin;
  size_t bytes;
  bool written;
  bool shared;  // the bytes belong to one block
  std::vector<Touched> touched;
};

Watched watched(const char* name, const void* begin, size_t bytes, bool written, bool shared) {
  return {name,   static_cast<const char*>(begin), bytes, written,
          shared, std::vector<Touched>(bytes)};
}

std::vector<Watched>& all_watched() {
  static std::vector<Watched> all = [] {
    std::vector<Watched> shared;
    shared.push_back(watched("shared memory", __bss_start, static_cast<size_t>(_end - __bss_start),
                             false, true));
    return shared;
  }();
  return all;
}

Watched* find(const char* address, size_t bytes) {
  for (Watched& one : all_watched()) {
    if (address >= one.begin && address + bytes <= one.begin + one.bytes) return &one;
  }
  return nullptr;
}

// Returns whether another thread's access may happen at the same time as this one.
bool races(const Moment& other, const Moment& now, bool shared) {
  if (other.launch != now.launch) return false;
  if (other.block != now.block) return !shared;
  return other.epoch == now.epoch && other.thread != now.thread;
}

bool has_value(const Watched& memory, const Moment& write, const Moment& now) {
  if (!memory.shared) return memory.written || write.launch != 0;
  return write.launch == now.launch && write.block == now.block;
}

void note_read(Moment& read, const Moment& now, bool shared) {
  const bool other_block = read.launch == now.launch && read.block != now.block && !shared;
  const bool other_thread = !other_block && read.launch == now.launch && read.block == now.block &&
                            read.epoch == now.epoch && read.thread != now.thread;
  read = now;
  if (other_block) read.block = kMany;
  if (other_thread) read.thread = kMany;
}

[[noreturn]] void fail_at(const Watched& memory, const char* address, bool write,
                          const std::string& what) {
  fail((write ? "writes " : "reads ") + memory.name + " + " +
       std::to_string(address - memory.begin) + ", " + what);
}

std::string by(const Moment& other) {
  const auto name = [](uint32_t id) { return id == kMany ? "several" : std::to_string(id); };
  return " thread " + name(other.thread) + " of block " + name(other.block);
}

void check_byte(Watched& memory, size_t at, const Moment& now, bool write) {
  Touched& byte = memory.touched[at];
  const char* address = memory.begin + at;
  if (races(byte.write, now, memory.shared)) {
    fail_at(memory, address, write, "written without a barrier between by" + by(byte.write));
  }
  if (!write) {
    if (!has_value(memory, byte.write, now)) {
      fail_at(memory, address, write, "which nobody has written");
    }
    return note_read(byte.read, now, memory.shared);
  }
  if (races(byte.read, now, memory.shared)) {
    fail_at(memory, address, write, "read without a barrier between by" + by(byte.read));
  }
  byte.write = now;
}

}  // namespace

void watch(const char* name, const void* begin, size_t bytes, bool written) {
  all_watched().push_back(watched(name, begin, bytes, written, false));
}

void forget(const void* begin) {
  const size_t erased = std::erase_if(
      all_watched(), [begin](const Watched& one) { return one.begin == begin && !one.shared; });
  LONGSHORE_CHECK(erased == 1) << erased;
}

void check_access(const void* address, size_t bytes, bool write) {
  const RunningThread* const thread = running_thread();
  if (thread == nullptr || thread->fiber->holds(address)) return;
  const auto* const first = static_cast<const char*>(address);
  Watched* const memory = find(first, bytes);
  if (memory == nullptr) {
    fail((write ? "writes " : "reads ") + std::to_string(bytes) + " bytes beyond every operand");
  }
  if (bytes <= 16 && reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    fail_at(*memory, first, write, "misaligned");
  }
  const auto offset = static_cast<size_t>(first - memory->begin);
  for (size_t i = 0; i < bytes; ++i) check_byte(*memory, offset + i, thread->moment, write);
}

}  // namespace longshore::emulation
