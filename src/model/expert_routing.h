// Expert routing: which experts a token goes to and with which weights, and the gradient of that.
// Without autograd; the same input gives the same routing, so what backward computes again from a
// activation checkpoint is what forward chose. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/arch_spec.h"

namespace longshore {

struct Routing {
  at::Tensor experts;        // int64 [T, top_k], the best first; of equal ones the lowest
  at::Tensor weights;        // fp32 [T, top_k]
  at::Tensor probabilities;  // fp32, what the softmax gave: [T, experts], or [T, top_k]
  // fp32 [T, experts]: the softmax over all experts; undefined where nobody asks.
  at::Tensor of_all;
};

// `scores`: [T, experts], of the compute dtype.
Routing route(const at::Tensor& scores, const MoeSpec& moe);

// The gradient of the scores, fp32, from that of the weights, fp32 [T, top_k], and that of each
// position's `of_all`, fp32 [experts]; undefined: none.
at::Tensor route_backward(const at::Tensor& grad_weights, const at::Tensor& balance,
                          const Routing& routing, const MoeSpec& moe);

// Tokens in the order of experts. A pair is token * top_k + the place of the choice.
struct Dispatch {
  at::Tensor pairs;             // int64 [T * top_k], by expert, then by token
  std::vector<int64_t> starts;  // [experts + 1]: where each expert's pairs begin
};
Dispatch dispatch(const at::Tensor& experts, int64_t expert_count);

}  // namespace longshore
