// expert_math: one expert's outputs for its tokens, and their gradients, added straight to the
// sums. It saves nothing: backward recomputes gate and up but not the output, so an expert's
// temporaries live only while it runs. Immutable; without autograd; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/units/unit.h"

namespace longshore {

// Tokens of one expert per piece; this bounds its temporaries for any routing.
inline constexpr int64_t kExpertRows = 4096;

// Indices of an expert's matrices in its unit's parameters; gate and up are fused or separate, or
// there is no gate.
struct ExpertPlaces {
  int32_t gate = -1, up = -1, gate_up = -1, down = -1;
  int32_t gate_up_bias = -1, down_bias = -1;
  int64_t row = -1;  // row of this expert if the parameters hold many experts
  // The adapters of gate and up and of down, and this expert's row in each; -1: none.
  struct Adapter {
    int32_t a = -1, b = -1;
  };
  Adapter gate_up_adapter = {}, down_adapter = {};
  int64_t adapter_row = 0;
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
  at::Tensor outputs(UnitParameters parameters, const ExpertPlaces& places,
                     const ExpertRows& rows) const;
  struct Gradients {
    at::Tensor x;        // of the shape of the rows
    at::Tensor weights;  // fp32 [n]
  };
  // `grad` is the gradient of the outputs.
  Gradients gradients(UnitParameters parameters, const ExpertPlaces& places, const ExpertRows& rows,
                      const at::Tensor& grad, GradientSink& sink) const;

 private:
  at::Tensor part(UnitParameters parameters, int32_t index, int64_t row) const;
  // Returns gate and up, [n, 2 * width], in the family's order; without gates up, [n, width].
  // `gate_up` is the matrix of both, undefined if the expert has two.
  at::Tensor inner(UnitParameters parameters, const ExpertPlaces& places, const at::Tensor& x,
                   const at::Tensor& gate_up) const;
  at::Tensor gate_of(const at::Tensor& inner) const;  // undefined without gates
  at::Tensor up_of(const at::Tensor& inner) const;
  at::Tensor value_of(const at::Tensor& inner) const;
  // Overwrites `inner` with its gradient, given the gradient of its value.
  void value_backward(const at::Tensor& grad, const at::Tensor& inner) const;
  void add_matrix(GradientSink& sink, int32_t index, int64_t row, const at::Tensor& out_grad,
                  const at::Tensor& in) const;

  // Returns the gradient of x that flows through the matrices of gate and up. `gate_up` is
  // inner()'s.
  at::Tensor inner_backward(UnitParameters parameters, const ExpertPlaces& places,
                            const at::Tensor& grad, const at::Tensor& gate_up) const;

  // Adds scaling * (in A^T) B^T to `out` if there is an adapter.
  void add_adapted(UnitParameters parameters, const ExpertPlaces::Adapter& adapter, int64_t row,
                   double scaling, const at::Tensor& in, const at::Tensor& out) const;
  // Adds the gradients of A and B, and what flows to `in` through them to `in_grad` if it is
  // defined.
  void adapter_backward(UnitParameters parameters, const ExpertPlaces::Adapter& adapter,
                        int64_t row, double scaling, const at::Tensor& out_grad,
                        const at::Tensor& in, const at::Tensor& in_grad, GradientSink& sink) const;

  int64_t width_;
  Activation activation_;
  bool gated_, transposed_, interleaved_;
  double clamp_, gate_gain_;
  double gate_up_scaling_, down_scaling_;  // of adapters
};

// expert_routing: selects each token's experts and their weights, and computes the gradient.
// Without autograd. The same input gives the same routing, so what backward recomputes from an
// activation checkpoint equals forward's. Compute thread only.

struct Routing {
  at::Tensor experts;  // int64 [T, top_k], the best first; of equal ones the lowest
  at::Tensor weights;  // fp32 [T, top_k]
  // fp32, the softmax or the sigmoid: [T, experts], or [T, top_k] of the chosen ones alone.
  at::Tensor probabilities;
  // fp32 [T, experts]: the softmax over all experts; undefined unless balanced or watched.
  at::Tensor of_all;
};

// `scores` is [T, experts] in the compute dtype, or fp32 for a sigmoid; `correction` is fp32
// [experts], or undefined.
Routing route(const at::Tensor& scores, const MoeSpec& moe, const at::Tensor& correction = {});

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
