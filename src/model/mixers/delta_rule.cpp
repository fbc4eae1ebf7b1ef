#include "model/mixers/delta_rule.h"

#include <torch/csrc/autograd/custom_function.h>

#include "device/gpu_tensors.h"
#include "model/mixers/delta_scan.h"
#include "model/ops/document_chunks.h"
#include "model/units/adapted_product.h"

namespace longshore {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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

DeltaSpec spec_from(const c10::List<int64_t>& sizes) {
  return {.key_heads = sizes[0],
          .value_heads = sizes[1],
          .key_dim = sizes[2],
          .value_dim = sizes[3],
          .taps = 0};
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

struct DeltaFunction : Function<DeltaFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& mixed, const at::Tensor& beta,
                            const at::Tensor& decay, const at::Tensor& rate, const at::Tensor& step,
                            const DeltaSpec& spec, const std::vector<int64_t>& document_starts,
                            bool keeps) {
    const DeltaTerms terms = terms_of({mixed, beta, decay, rate, step}, spec, document_starts);
    at::Tensor out = at::empty({mixed.size(0), spec.value_width()}, terms.mixed.options());
    const at::Tensor kept = keeps ? states_for(terms) : at::Tensor();
    if (takes_gpu_form(mixed)) {
      delta_blocks_forward(terms, out, kept);
    } else {
      delta_heads_forward(terms, out, kept);
    }
    if (!keeps) return out;
    ctx->save_for_backward({mixed, beta, decay, rate, step});
    ctx->saved_data["sizes"] =
        c10::List<int64_t>({spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim});
    ctx->saved_data["starts"] = c10::List<int64_t>(at::ArrayRef<int64_t>(document_starts));
    if (kept.defined()) ctx->saved_data["states"] = kept;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const DeltaInputs in{saved[0], saved[1], saved[2], saved[3], saved[4]};
    const at::NoGradGuard no_grad;
    const std::vector<int64_t> starts = ctx->saved_data["starts"].toIntVector();
    const DeltaTerms terms = terms_of(in, spec_from(ctx->saved_data["sizes"].toIntList()), starts);
    at::Tensor states;
    if (const auto kept = ctx->saved_data.find("states"); kept != ctx->saved_data.end()) {
      states = kept->second.toTensor();
      ctx->saved_data.erase(kept);  // the node may outlive its backward
    }
    const DeltaGradients own{at::empty(in.mixed.sizes(), grads[0].options().requires_grad(false)),
                             at::empty_like(terms.beta), at::empty_like(terms.decay)};
    const at::Tensor grad = grads[0].contiguous();
    if (takes_gpu_form(in.mixed)) {
      delta_blocks_backward(terms, grad, states, own);
    } else {
      delta_heads_backward(terms, grad, states, own);
    }
    states.reset();
    return input_gradients(in, terms, own);
  }

  // Returns the gradients of forward's arguments from those of the terms.
  static variable_list input_gradients(const DeltaInputs& in, const DeltaTerms& terms,
                                       const DeltaGradients& own) {
    const at::Tensor rate_sum = row_sum(own.decay * terms.decay);
    at::Tensor by_shifted = own.decay * in.rate.to(at::kFloat).exp().neg_();
    by_shifted.mul_(at::sigmoid(shifted(in)));
    const at::Tensor by_beta = (own.beta * terms.beta).mul_(1.0 - terms.beta);
    return {own.mixed,
            by_beta.to(in.beta.scalar_type()),
            by_shifted.to(in.decay.scalar_type()),
            rate_sum.to(in.rate.scalar_type()),
            row_sum(by_shifted).to(in.step.scalar_type()),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor delta_rule(const DeltaInputs& inputs, const DeltaSpec& spec,
                      const std::vector<int64_t>& document_starts) {
  return DeltaFunction::apply(inputs.mixed, inputs.beta, inputs.decay, inputs.rate, inputs.step,
                              spec, document_starts, at::GradMode::is_enabled());
}

}  // namespace longshore
