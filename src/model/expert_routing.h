// expert_routing: selects each token's experts and their weights, and computes the gradient.
// Without autograd. The same input gives the same routing, so what backward recomputes from an
// activation checkpoint equals forward's. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/arch_spec.h"

namespace longshore {

struct Routing {
  at::Tensor experts;        // int64 [T, top_k], the best first; of equal ones the lowest
  at::Tensor weights;        // fp32 [T, top_k]
  at::Tensor probabilities;  // fp32, the softmax: [T, experts], or [T, top_k]
  // fp32 [T, experts]: the softmax over all experts; undefined unless balanced or watched.
  at::Tensor of_all;
};

// `scores` is [T, experts] in the compute dtype.
Routing route(const at::Tensor& scores, const MoeSpec& moe);

// Returns the gradient of the scores in fp32. `grad_weights` is fp32 [T, top_k]; `balance`, the
// gradient of each position's `of_all`, is fp32 [experts] or undefined.
at::Tensor route_backward(const at::Tensor& grad_weights, const at::Tensor& balance,
                          const Routing& routing, const MoeSpec& moe);

// Tokens in the order of experts. A pair is token * top_k + the rank of the choice.
struct Dispatch {
  at::Tensor pairs;             // int64 [T * top_k], by expert, then by token
  std::vector<int64_t> starts;  // [experts + 1]: start of each expert's pairs
};
Dispatch dispatch(const at::Tensor& experts, int64_t expert_count);

}  // namespace longshore
