// expert_math: the matrices of an expert (Expert), its outputs for its tokens and their gradients,
// added straight to the sums (ExpertMath); then which experts a token takes (route), and the tokens
// of each (dispatch). ExpertMath saves nothing: backward recomputes gate and up but not the output,
// so an expert's temporaries live only while it runs. Immutable; without autograd; compute thread
// only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/units/linear.h"
#include "model/units/unit.h"

namespace longshore {

// Tokens of one expert per piece; this bounds its temporaries for any routing.
inline constexpr int64_t kExpertRows = 4096;

// An expert's matrices; gate and up are fused or separate, or there is no gate. If they are
// separate, `gate_up` has no matrix, but may have the adapter of both.
struct Expert {
  Linear gate = {}, up = {}, gate_up = {}, down = {};
};

// The rows of tokens that are routed to one expert.
struct ExpertRows {
  at::Tensor x;        // [n, ArchSpec::experts_hidden()]
  at::Tensor weights;  // fp32 [n, 1], factors of the expert's outputs
};

class ExpertMath {
 public:
  ExpertMath(const ArchSpec& arch, int64_t width);

  // Returns the weighted outputs, fp32, of the shape of the rows.
  at::Tensor outputs(const Expert& expert, const ExpertRows& rows) const;
  struct Gradients {
    at::Tensor x;        // of the shape of the rows
    at::Tensor weights;  // fp32 [n]
  };
  // `grad` is the gradient of the outputs.
  Gradients gradients(const Expert& expert, const ExpertRows& rows, const at::Tensor& grad,
                      GradientSink& sink) const;

 private:
  // Returns gate and up, [n, 2 * width], in the family's order; without gates up, [n, width].
  // `gate_up` is the expert's, unpacked.
  at::Tensor inner(const Expert& expert, const Linear& gate_up, const at::Tensor& x) const;
  at::Tensor gate_of(const at::Tensor& inner) const;  // undefined without gates
  at::Tensor up_of(const at::Tensor& inner) const;
  at::Tensor value_of(const at::Tensor& inner, bool by_row) const;
  // Overwrites `inner` with its gradient, given the gradient of its value.
  void value_backward(const at::Tensor& grad, const at::Tensor& inner) const;
  // Returns the gradient of x that flows through the matrices of gate and up. `gate_up` is
  // inner()'s.
  at::Tensor inner_backward(const Expert& expert, const Linear& gate_up,
                            const at::Tensor& grad) const;

  int64_t width_;
  Activation activation_;
  bool gated_, interleaved_;
  double clamp_, gate_gain_;
};

// The experts of each token and their weights. The same input gives the same routing, so what
// backward recomputes from an activation checkpoint equals forward's.
struct Routing {
  at::Tensor experts;  // int64 [T, top_k], the best first; of equal ones the lowest
  at::Tensor weights;  // fp32 [T, top_k]
  // fp32, the softmax or the sigmoid: [T, experts], or [T, top_k] of the chosen ones alone.
  at::Tensor probabilities;
  // fp32 [T, experts]: the softmax over all experts; undefined unless balanced or watched.
  at::Tensor of_all;
};

// Returns the sigmoid of x [T, width]. By row the bits of a row do not depend on the others.
at::Tensor sigmoid(const at::Tensor& x, bool by_row);

// `scores` is [T, experts] in the compute dtype, or fp32 for a sigmoid; `correction` is fp32
// [experts], or undefined.
Routing route(const at::Tensor& scores, const MoeSpec& moe, const at::Tensor& correction = {},
              bool by_row = false);

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
