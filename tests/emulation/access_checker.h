// Finds a kernel's accesses beyond an operand, races, and reads of unwritten bytes ([Note: what is
// a fault], emulated_grid.h). Every byte of an operand and of the program's static memory, where
// shared memory lies, has the moment of its last write and read. One thread.
#pragma once

#include <cstddef>

namespace longshore::emulation {

// Allows kernels to access these bytes until forget(); with `written` they have values to read.
void watch(const char* name, const void* begin, size_t bytes, bool written);
void forget(const void* begin);

// Checks an access that the running thread is about to make; does nothing if no thread runs.
void check_access(const void* address, size_t bytes, bool write);

}  // namespace longshore::emulation
