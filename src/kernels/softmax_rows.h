// softmax_rows: the softmax of attention over a block of scores, and its gradient, on the CPU. The
// rows of a block are queries, its columns keys. All is fp32 but the weights and their gradients,
// which are rounded to the dtype of the products that read them. Sums have one order on every
// instruction set (cpu_vectors-inl.h). Pure functions; any thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace longshore::kernels {

// The columns [first, end) that a row sees; the weights of the others are zero.
struct VisibleColumns {
  int32_t first, end;
};

// Matrices are contiguous [rows, columns]. A score becomes scale * score, or with a cap
// cap * tanh(scale * score / cap).
struct ScoreBlock {
  DType dtype;  // of weights and their gradients
  int64_t rows, columns;
  const VisibleColumns* visible;  // [rows]
  float scale;
  float cap;  // 0: none
};

// Adds a block of keys to the softmax of its rows (online softmax, Milakov and Gimelshein 2018).
// `largest` and `sums` hold each row's largest score and sum of exponentials so far, at first minus
// infinity and 0. Writes to `weights` exp(score - largest), or zero below 1e-20, and to `factors`
// the factors by which the caller must multiply the results of earlier blocks. Overwrites the
// scores.
void softmax_block(const ScoreBlock& block, float* scores, float* largest, float* sums,
                   float* factors, void* weights);

// Writes the weights exp(score - log_sums[row]), or zero below 1e-20, and to `score_grads` the
// gradients of the scores before scale and cap, from `weight_grads`. `along[row]` is the product of
// the row's result and its gradient.
void softmax_block_backward(const ScoreBlock& block, const float* scores, const float* weight_grads,
                            const float* log_sums, const float* along, void* weights,
                            void* score_grads);

}  // namespace longshore::kernels
