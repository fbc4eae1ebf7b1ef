// Cross entropy of a chunk of logits; writes its gradient over the logits. The first pass finds
// each row's maximum and its sum of exponentials, the second writes
//   loss = log(sum exp(l - max)) + max - l[target]
//   grad = factor * (exp(l - max) / sum - (1 for the target, else 0))
// where a row's factor is `scale`, times its element of `row_scales` if that is not null. The first
// pass also finds, with p = exp(l - max) / sum, whether the target has the highest logit (of equal
// ones that of the lowest id) and the entropy -sum p log p = log(sum) - sum p (l - max): one
// multiplication and addition a logit beside its exponential, and no pass of its own. The
// caller computes the head's matrix products, in chunks, so logits of all positions never exist.
// Arithmetic is in fp32, sums over a row on the CPU in double; logits are [rows, vocabulary] in
// `dtype` (fp32 or bf16), contiguous; targets are in [0, vocabulary). These are pure functions; any
// thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"

struct CUstream_st;

namespace longshore::kernels {

struct CrossEntropy {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t vocabulary = 0;
  double scale = 1.0;                 // factor of the gradient
  bool gradient = false;              // if false, the logits stay unchanged
  const float* row_scales = nullptr;  // [rows], where the logits are; null: 1 for every row
  // [rows, 2], where the logits are: 1 if the target has the highest logit, else 0; the entropy in
  // nats. Null: not wanted.
  float* statistics = nullptr;
};

// exp() of less is 0 in fp32. In the entropy's sum this takes the place of such exponents, because
// 0 times minus infinity is no number; sums of finite ones, such as -3e38, would become infinite.
inline constexpr float kLeastEntropyExponent = -200.0f;

// `losses` is fp32 [rows].
void cross_entropy_cpu(const CrossEntropy& shape, void* logits, const int64_t* targets,
                       float* losses);
void cross_entropy_cuda(const CrossEntropy& shape, void* logits, const int64_t* targets,
                        float* losses, CUstream_st* stream);

}  // namespace longshore::kernels
