// Expert math: what one expert makes of its tokens, and the gradients of that, straight into the
// sums. Nothing is saved: backward computes gate and up again and never the output, so that an
// expert's temporaries live while it runs. Immutable; without autograd; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "model/arch_spec.h"
#include "model/unit.h"

namespace longshore {

// Tokens of one expert at one time: bounds its temporaries however tokens are routed.
inline constexpr int64_t kExpertRows = 4096;

// An expert's matrices as its unit's parameters, by index: gate and up in one or each for itself.
struct ExpertPlaces {
  int32_t gate = -1, up = -1, gate_up = -1, down = -1;
  int32_t gate_up_bias = -1, down_bias = -1;
  int64_t row = -1;  // where the parameters are of many experts
};

// The rows of some tokens that go to one expert.
struct ExpertRows {
  at::Tensor x;        // [n, hidden]
  at::Tensor weights;  // fp32 [n, 1], what the expert's outputs are multiplied by
};

class ExpertMath {
 public:
  ExpertMath(const ArchSpec& arch, int64_t width);

  // Weighted, fp32 [n, hidden].
  at::Tensor outputs(UnitParameters parameters, const ExpertPlaces& places,
                     const ExpertRows& rows) const;
  struct Gradients {
    at::Tensor x;        // [n, hidden]
    at::Tensor weights;  // fp32 [n]
  };
  // `grad`: [n, hidden], of the outputs.
  Gradients gradients(UnitParameters parameters, const ExpertPlaces& places, const ExpertRows& rows,
                      const at::Tensor& grad, GradientSink& sink) const;

 private:
  at::Tensor part(UnitParameters parameters, int32_t index, int64_t row) const;
  // [n, 2 * width]: gate and up, as the family orders them.
  at::Tensor inner(UnitParameters parameters, const ExpertPlaces& places,
                   const at::Tensor& x) const;
  at::Tensor gate_of(const at::Tensor& inner) const;
  at::Tensor up_of(const at::Tensor& inner) const;
  at::Tensor value_of(const at::Tensor& inner) const;
  // Overwrites `inner` with its gradient from that of its value.
  void value_backward(const at::Tensor& grad, const at::Tensor& inner) const;
  void add_matrix(GradientSink& sink, int32_t index, int64_t row, const at::Tensor& out_grad,
                  const at::Tensor& in) const;

  int64_t width_;
  Activation activation_;
  bool transposed_, interleaved_;
  double clamp_, gate_gain_;
};

}  // namespace longshore
