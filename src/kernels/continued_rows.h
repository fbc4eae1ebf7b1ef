// continued_rows: attention of the next positions of a sequence over the keys and values that
// decoding keeps, on the CPU. A position has a row for each query head that shares the key head.
// The sums of a row have one order, whatever other rows a call has ([Note: bits of a continued row]
// in model/attention/continued_attention.h). Pure functions; any thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace longshore::kernels {

// A row sees the positions of its sequence up to its own, in blocks whose borders are multiples of
// this.
inline constexpr int64_t kContinuedBlock = 64;

struct ContinuedShape {
  DType dtype;     // of all arrays but the sinks
  int64_t group;   // query heads that share a key head
  int64_t dim;     // of a head
  int64_t window;  // the positions that a row sees at most; 0: all
  float scale;
  float cap;  // scores become cap * tanh(scale * score / cap); 0: none
};

// One key head of one sequence. Strides are elements between positions.
struct ContinuedHead {
  int64_t before;  // positions in the cache
  const void* q;   // of the first new position; the group's heads are neighbours
  int64_t q_stride;
  const void *new_keys, *new_values;  // of the new positions; null: they are in the cache
  int64_t key_stride, value_stride;
  const void *keys, *values;  // the cache: position p is row p % capacity
  int64_t cache_stride, capacity;
  const float* sinks;  // [group], or null
  void* out;
  int64_t out_stride;
};

// The floats of scratch that a call needs.
int64_t continued_scratch(const ContinuedShape& shape);

// Writes the results of the new positions [begin, end). Does not write the cache.
void continued_rows_cpu(const ContinuedShape& shape, const ContinuedHead& head, int64_t begin,
                        int64_t end, float* scratch);

}  // namespace longshore::kernels
