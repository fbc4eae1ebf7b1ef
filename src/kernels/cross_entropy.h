// Cross entropy of a chunk of logits, and its gradient over the logits' own memory: one pass that
// finds each row's maximum and sum of exponentials, one that writes
//   loss = log(sum exp(l - max)) + max - l[target],  grad = scale * (exp(l - max) / sum - [target])
// The head's matrix product before it and the two behind it are the caller's; logits of all
// positions never exist. Arithmetic in fp32; logits [rows, vocabulary] in `dtype` (fp32 or bf16),
// contiguous; targets in [0, vocabulary). Pure functions.
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

struct CrossEntropy {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t vocabulary = 0;
  double scale = 1.0;     // of the gradient
  bool gradient = false;  // else the logits stay as they are
};

// losses fp32 [rows].
void cross_entropy_cpu(const CrossEntropy& shape, void* logits, const int64_t* targets,
                       float* losses);
void cross_entropy_cuda(const CrossEntropy& shape, void* logits, const int64_t* targets,
                        float* losses, CUstream_st* stream);

}  // namespace longshore::kernels
