// Kernels with one mistake each, which the emulation must find. For emulation_test.cpp.
#pragma once

namespace longshore::emulation {

// Reverses 64 values by way of shared memory; correct only with the barrier.
void reverse_64(int* values, bool barrier);
void sum_one_too_many(const int* values, int count, int* sum);
void write_one_place_from_two_blocks(int* number);
void read_another_blocks_shared_memory(int* two_numbers);
void add_to_result(int* number);
void end_before_a_barrier();
void end_before_an_exchange();
void copy_16_bytes(void* to, const void* from);

}  // namespace longshore::emulation
