// recurrent_steps: one position of a recurrence whose state is a matrix, as decoding computes it on
// the CPU: gated DeltaNet and Mamba-2, of one head. All is fp32. Sums go over the rows of the state
// in their order, so they have the same bits on every instruction set (cpu_vectors-inl.h). Pure
// functions; any thread.
#pragma once

#include <cstdint>

namespace longshore::kernels {

// One position of a head. Its state S is [keys, values], contiguous.
struct RecurrentStep {
  int64_t keys = 0, values = 0;
  const float* key = nullptr;    // [keys]
  const float* query = nullptr;  // [keys]
  const float* value = nullptr;  // [values]
  float decay = 1.0f;            // factor of the state
  float* state = nullptr;
  float* out = nullptr;  // [values]
};

// S = decay * S + key value^T; out = S^T query.
void recurrent_step(const RecurrentStep& step);

// S = decay * S; c = beta * (value - S^T key); S = S + key c^T; out = S^T query.
void delta_step(const RecurrentStep& step, float beta);

}  // namespace longshore::kernels
