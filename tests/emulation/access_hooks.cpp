// The calls that the compiler puts before each access of a file compiled for ThreadSanitizer, for
// builds that do not link its runtime. Kernels are compiled so in builds without sanitizers, so
// that all their accesses are checked.
#include <cstddef>

#include "tests/emulation/access_checker.h"

namespace {

void reads(const void* address, size_t bytes) {
  longshore::emulation::check_access(address, bytes, false);
}
void writes(const void* address, size_t bytes) {
  longshore::emulation::check_access(address, bytes, true);
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}

void __tsan_read1(void* address) {
  reads(address, 1);
}
void __tsan_read2(void* address) {
  reads(address, 2);
}
void __tsan_read4(void* address) {
  reads(address, 4);
}
void __tsan_read8(void* address) {
  reads(address, 8);
}
void __tsan_read16(void* address) {
  reads(address, 16);
}
void __tsan_write1(void* address) {
  writes(address, 1);
}
void __tsan_write2(void* address) {
  writes(address, 2);
}
void __tsan_write4(void* address) {
  writes(address, 4);
}
void __tsan_write8(void* address) {
  writes(address, 8);
}
void __tsan_write16(void* address) {
  writes(address, 16);
}
void __tsan_read_range(void* address, size_t bytes) {
  reads(address, bytes);
}
void __tsan_write_range(void* address, size_t bytes) {
  writes(address, bytes);
}
}
