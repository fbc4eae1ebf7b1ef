#include "model/mixers/delta_rule.h"

#include "device/gpu_tensors.h"
#include "model/mixers/delta_scan.h"
#include "model/ops/document_chunks.h"
#include "model/ops/graph_operation.h"
#include "model/units/linear.h"

namespace longshore {
namespace {

// Returns the argument of softplus in the decay, fp32.
at::Tensor shifted(const DeltaInputs& in) {
  return in.decay.to(at::kFloat) + in.step.to(at::kFloat);
}

DeltaTerms terms_of(const DeltaInputs& in, const DeltaSpec& spec,
                    const std::vector<int64_t>& document_starts) {
  return {
      .mixed = in.mixed.detach().contiguous(),
      .beta = at::sigmoid(in.beta.detach()).to(at::kFloat).contiguous(),
      .decay =
          at::softplus(shifted(in).contiguous()).mul_(in.rate.to(at::kFloat).exp()).neg_().detach(),
      .spec = spec,
      .document_starts = document_starts};
}

// Returns memory for the state before each chunk but a document's first, undefined if none is.
at::Tensor states_for(const DeltaTerms& terms) {
  int64_t count = 0;
  for (size_t d = 0; d + 1 < terms.document_starts.size(); ++d) {
    count += passed_states(terms.document_starts[d + 1] - terms.document_starts[d]);
  }
  if (count == 0) return {};
  const DeltaSpec& spec = terms.spec;
  return at::empty({count, spec.value_heads, spec.key_dim, spec.value_dim}, terms.beta.options());
}

// The inputs are those of DeltaInputs, in its order.
struct Delta {
  DeltaInputs in;
  DeltaSpec spec;
  std::vector<int64_t> document_starts;
  at::Tensor states = {};

  at::Tensor forward(bool keeps) {
    const DeltaTerms terms = terms_of(in, spec, document_starts);
    at::Tensor out = at::empty({in.mixed.size(0), spec.value_width()}, terms.mixed.options());
    if (keeps) states = states_for(terms);
    if (takes_gpu_form(in.mixed)) {
      delta_blocks_forward(terms, out, states);
    } else {
      delta_heads_forward(terms, out, states);
    }
    return out;
  }

  std::vector<at::Tensor*> saved() { return {&in.mixed, &in.beta, &in.decay, &in.rate, &in.step}; }

  void backward(const std::vector<at::Tensor>& grads, InputGradients& gradients) {
    const DeltaTerms terms = terms_of(in, spec, document_starts);
    const DeltaGradients own{at::empty(in.mixed.sizes(), grads[0].options().requires_grad(false)),
                             at::empty_like(terms.beta), at::empty_like(terms.decay)};
    const at::Tensor grad = grads[0].contiguous();
    if (takes_gpu_form(in.mixed)) {
      delta_blocks_backward(terms, grad, states, own);
    } else {
      delta_heads_backward(terms, grad, states, own);
    }
    states.reset();
    set_gradients(terms, own, gradients);
  }

  // Turns the gradients of the terms into those of the inputs.
  void set_gradients(const DeltaTerms& terms, const DeltaGradients& own,
                     InputGradients& gradients) const {
    const at::Tensor rate_sum = row_sum(own.decay * terms.decay);
    at::Tensor by_shifted = own.decay * in.rate.to(at::kFloat).exp().neg_();
    by_shifted.mul_(at::sigmoid(shifted(in)));
    const at::Tensor by_beta = (own.beta * terms.beta).mul_(1.0 - terms.beta);
    gradients[0] = own.mixed;
    gradients[1] = by_beta.to(in.beta.scalar_type());
    gradients[2] = by_shifted.to(in.decay.scalar_type());
    gradients[3] = rate_sum.to(in.rate.scalar_type());
    gradients[4] = row_sum(by_shifted).to(in.step.scalar_type());
  }
};

}  // namespace

at::Tensor delta_rule(const DeltaInputs& inputs, const DeltaSpec& spec,
                      const std::vector<int64_t>& document_starts) {
  const bool keeps = at::GradMode::is_enabled();
  return run_operation(Delta{inputs, spec, document_starts},
                       {inputs.mixed, inputs.beta, inputs.decay, inputs.rate, inputs.step}, keeps);
}

}  // namespace longshore
