// What a kernel may touch, and who touched it last: finds accesses beyond an operand, races, and
// reads of bytes that nobody wrote ([Note: what is a fault], emulated_grid.h). Every byte of an
// operand, and of the program's static memory, where shared memory lies, has the moment of its last
// write and read. One thread.
#pragma once

#include <cstddef>

namespace longshore::emulation {

// Kernels may touch these bytes until forget(); `written`: they have values to read.
void watch(const char* name, const void* begin, size_t bytes, bool written);
void forget(const void* begin);

// The running thread is about to touch memory; nothing happens where none runs.
void check_access(const void* address, size_t bytes, bool write);

}  // namespace longshore::emulation
