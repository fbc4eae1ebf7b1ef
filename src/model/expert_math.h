// expert_math: one expert's outputs for its tokens, and their gradients, added straight to the
// sums. It saves nothing: backward recomputes gate and up but not the output, so an expert's
// temporaries live only while it runs. Immutable; without autograd; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/arch_spec.h"
#include "model/unit.h"

namespace longshore {

// Tokens of one expert per piece; this bounds its temporaries for any routing.
inline constexpr int64_t kExpertRows = 4096;

// Indices of an expert's matrices in its unit's parameters; gate and up are fused or separate.
struct ExpertPlaces {
  int32_t gate = -1, up = -1, gate_up = -1, down = -1;
  int32_t gate_up_bias = -1, down_bias = -1;
  int64_t row = -1;  // row of this expert if the parameters hold many experts
};

// The rows of tokens that are routed to one expert.
struct ExpertRows {
  at::Tensor x;        // [n, hidden]
  at::Tensor weights;  // fp32 [n, 1], factors of the expert's outputs
};

class ExpertMath {
 public:
  ExpertMath(const ArchSpec& arch, int64_t width);

  // Returns the weighted outputs, fp32 [n, hidden].
  at::Tensor outputs(UnitParameters parameters, const ExpertPlaces& places,
                     const ExpertRows& rows) const;
  struct Gradients {
    at::Tensor x;        // [n, hidden]
    at::Tensor weights;  // fp32 [n]
  };
  // `grad` is the gradient of the outputs, [n, hidden].
  Gradients gradients(UnitParameters parameters, const ExpertPlaces& places, const ExpertRows& rows,
                      const at::Tensor& grad, GradientSink& sink) const;

 private:
  at::Tensor part(UnitParameters parameters, int32_t index, int64_t row) const;
  // Returns gate and up, [n, 2 * width], in the family's order.
  at::Tensor inner(UnitParameters parameters, const ExpertPlaces& places,
                   const at::Tensor& x) const;
  at::Tensor gate_of(const at::Tensor& inner) const;
  at::Tensor up_of(const at::Tensor& inner) const;
  at::Tensor value_of(const at::Tensor& inner) const;
  // Overwrites `inner` with its gradient, given the gradient of its value.
  void value_backward(const at::Tensor& grad, const at::Tensor& inner) const;
  void add_matrix(GradientSink& sink, int32_t index, int64_t row, const at::Tensor& out_grad,
                  const at::Tensor& in) const;

  int64_t width_;
  Activation activation_;
  bool transposed_, interleaved_;
  double clamp_, gate_gain_;
};

}  // namespace longshore
