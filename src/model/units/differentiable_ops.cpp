#include "model/units/differentiable_ops.h"

#include "base/errors.h"
#include "model/attention/document_attention.h"
#include "model/ops/fused_ops.h"
#include "model/ops/graph_operation.h"
#include "model/units/adapted_product.h"

namespace longshore {
namespace {

using Gradients = std::vector<at::Tensor>;

at::Tensor normed(const at::Tensor& x, const NormWeights& norm) {
  return fused::norm(x, norm.weight, norm.bias, norm.kind, norm.eps);
}

// Sets the gradient of x, the node's input 0, and those of the norm's weight and bias, the inputs
// from `place`. `grad` is that of the norm's output.
void norm_backward(InputGradients& gradients, size_t place, const at::Tensor& grad,
                   const at::Tensor& x, const NormWeights& norm) {
  const auto sums = norm.weight.options().dtype(at::kFloat).requires_grad(false);
  const auto sum_for = [&](size_t input) {
    return gradients.wanted(input) ? at::zeros_like(norm.weight, sums) : at::Tensor();
  };
  const at::Tensor weight = sum_for(place), bias = sum_for(place + 1);
  gradients[0] = fused::norm_backward(grad, x, norm.weight, norm.kind, norm.eps, weight, bias);
  if (weight.defined()) gradients[place] = weight.to(norm.weight.scalar_type());
  if (bias.defined()) gradients[place + 1] = bias.to(norm.weight.scalar_type());
}

// The inputs are x and the norm's weight and bias.
struct Normalise {
  at::Tensor x;
  NormWeights norm;

  at::Tensor forward() const { return normed(x, norm); }
  std::vector<at::Tensor*> saved() { return {&x, &norm.weight, &norm.bias}; }
  void backward(const Gradients& grads, InputGradients& gradients) const {
    norm_backward(gradients, 1, grads[0], x, norm);
  }
};

// Returns a [rows, columns] tensor for values that are never read. Its elements share one memory
// location, so LibTorch reports an error if it is written.
at::Tensor unread_values(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  return at::empty_strided({rows, columns}, {0, 0}, options.requires_grad(false));
}

int64_t output_width(const StoredMatrix& weight, bool transposed) {
  return weight.size(transposed ? 1 : 0);
}

// A product's tensors are this many inputs of its node: the matrix, the bias, and the adapter's A,
// B and magnitude.
constexpr size_t kLinearInputs = 5, kBiasInput = 1, kLoraInput = 2;

void add_inputs(std::vector<at::Tensor>& inputs, const LinearWeights& one) {
  inputs.insert(inputs.end(),
                {one.weight.stored, one.bias, one.lora_a, one.lora_b, one.lora_magnitude});
}

// Adds what LinearWeights saves. Backward does not read the bias.
void add_saved(std::vector<at::Tensor*>& saved, LinearWeights& one) {
  saved.insert(saved.end(), {&one.weight.stored, &one.lora_a, &one.lora_b, &one.lora_magnitude});
}

// The inputs are x, the norm's weight and bias, and those of each product.
struct LinearGroup {
  static constexpr size_t kFirst = 3;  // the first product's place

  at::Tensor x;
  NormWeights norm;
  std::vector<LinearWeights> weights;
  bool transposed;
  std::vector<at::Tensor> lora_norms = {};  // DoRA's for each product; undefined without DoRA

  std::vector<at::Tensor> inputs() const {
    std::vector<at::Tensor> all{x, norm.weight, norm.bias};
    for (const LinearWeights& one : weights) add_inputs(all, one);
    return all;
  }

  std::vector<at::Tensor*> saved() {
    std::vector<at::Tensor*> all{&x, &norm.weight, &norm.bias};
    for (LinearWeights& one : weights) add_saved(all, one);
    return all;
  }

  // Backward computes this again with the same code: the bits are equal and no graph keeps it.
  at::Tensor input() const { return norm.weight.defined() ? normed(x, norm) : x; }

  std::vector<Lora> loras() const {
    std::vector<Lora> all;
    for (size_t i = 0; i < weights.size(); ++i) {
      all.push_back(Lora::of(weights[i]));
      if (i < lora_norms.size()) all.back().norms = lora_norms[i];
    }
    return all;
  }

  std::vector<at::Tensor> forward(Values values) {
    const bool unread = values == Values::kUnread;
    const at::Tensor in = unread ? x : input();
    std::vector<at::Tensor> out;
    std::vector<Lora> adapters = loras();
    if (!unread) join_inner(in, adapters);
    for (size_t i = 0; i < weights.size(); ++i) {
      const LinearWeights& one = weights[i];
      Lora& lora = adapters[i];
      const at::Tensor weight = one.weight.values_if(!unread || lora.magnitude.defined());
      if (lora.magnitude.defined()) lora.norms = lora.norms_of(weight, transposed);
      lora_norms.push_back(lora.norms);
      out.push_back(
          unread ? unread_values(x.size(0), output_width(one.weight, transposed), x.options())
                 : adapted_product(in, weight, one.bias, lora, transposed));
    }
    return out;
  }

  void backward(const Gradients& grads, InputGradients& gradients) const {
    at::Tensor in = input();
    std::vector<Lora> adapters = loras();
    const bool joined = join_inner(in, adapters);
    // The norm's parameters need the gradient of its output even where x needs none.
    const bool through = gradients.wanted(0) || gradients.wanted(1) || gradients.wanted(2);
    at::Tensor sum;                    // the gradient of `in`
    std::vector<at::Tensor> inner, a;  // of joined adapters: what flows to x through A
    for (size_t i = 0; i < weights.size(); ++i) {
      const Lora& lora = adapters[i];
      const at::Tensor weight = weights[i].weight.values_if(through || lora.magnitude.defined());
      const size_t place = kFirst + i * kLinearInputs;
      const LoraGradients own =
          lora_gradients(gradients, place + kLoraInput, grads[i], in, weight, lora, transposed);
      if (through) {
        const at::Tensor matrix = transposed ? weight.t() : weight;
        sum = i == 0 ? at::mm(own.product, matrix) : sum.addmm_(own.product, matrix);
        if (!joined) own.add_to_input(sum, weight, lora, transposed);
      }
      if (joined && lora.a.defined()) {
        inner.push_back(own.inner);
        a.push_back(lora.a);
      }
      if (gradients.wanted(place)) {
        own.add_weight_gradient(gradients, place, in, lora, transposed);
      }
      if (gradients.wanted(place + kBiasInput)) {
        gradients[place + kBiasInput] = row_sum(grads[i]);
      }
    }
    in.reset();
    if (!through) return;
    if (joined) sum.addmm_(at::cat(inner, 1), at::cat(a));
    if (norm.weight.defined()) {
      norm_backward(gradients, 1, sum, x, norm);
    } else {
      gradients[0] = sum;
    }
  }
};

// The inputs are q, k, v and the sinks.
struct Attention {
  at::Tensor q, k, v, sinks;
  AttentionShape shape;
  std::vector<int64_t> document_starts;
  AttentionResult result = {};

  at::Tensor forward(const AttentionPlace& place) {
    result = attend_at(place, q, k, v, shape, document_starts, sinks);
    return result.out;
  }
  std::vector<at::Tensor*> saved() { return {&q, &k, &v, &sinks, &result.out}; }
  void backward(const Gradients& grads, InputGradients& gradients) const {
    const std::vector<at::Tensor> own =
        attend_backward(grads[0], q, k, v, result, shape, document_starts, sinks);
    for (size_t i = 0; i < own.size(); ++i) gradients[i] = own[i];
  }
};

// The activations that have no kernel, from LibTorch's operations.
at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      return at::gelu(x, "none");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kReluSquared:
      return at::relu(x).square_();
    case Activation::kSilu:
    case Activation::kGeluTanh:
      break;
  }
  LONGSHORE_CHECK(false) << "a kernel has this activation";
  return {};
}

// Writes the gradient of activation(x) over x.
void activate_backward(at::Tensor& x, const at::Tensor& grad, Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      at::gelu_backward_out(x, grad, x, "none");
      return;
    case Activation::kRelu:
      at::threshold_backward_out(x, grad, x, 0);
      return;
    case Activation::kReluSquared:
      x.clamp_min_(0.0).mul_(2.0).mul_(grad);
      return;
    case Activation::kSilu:
    case Activation::kGeluTanh:
      break;
  }
  LONGSHORE_CHECK(false) << "a kernel has this activation";
}

}  // namespace

at::Tensor activated(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  const bool gated = gate.defined();
  if (fused::glu_has(activation)) {
    return fused::glu(gated ? gate : up, gated ? up : at::Tensor(), activation);
  }
  return gated ? activate(gate, activation).mul_(up) : activate(up, activation);
}

void activated_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                        Activation activation) {
  const bool gated = gate.defined();
  if (fused::glu_has(activation)) {
    fused::glu_backward(grad, gated ? gate : up, gated ? up : at::Tensor(), activation);
    return;
  }
  for_pieces(up.size(0), up.size(1), [&](int64_t begin, int64_t rows) {
    const at::Tensor grad_rows = grad.narrow(0, begin, rows);
    at::Tensor up_rows = up.narrow(0, begin, rows);
    if (!gated) {
      activate_backward(up_rows, grad_rows, activation);
      return;
    }
    at::Tensor gate_rows = gate.narrow(0, begin, rows);
    const at::Tensor grad_activated = grad_rows * up_rows;
    at::mul_out(up_rows, grad_rows, activate(gate_rows, activation));
    activate_backward(gate_rows, grad_activated, activation);
  });
}

namespace {

// The inputs are gate, up and those of the product.
struct ActivateAndProject {
  static constexpr size_t kFirst = 2;  // the product's place

  at::Tensor gate, up;
  LinearWeights down;
  Activation activation;
  bool transposed;
  at::Tensor lora_norms = {};  // DoRA's

  std::vector<at::Tensor> inputs() const {
    std::vector<at::Tensor> all{gate, up};
    add_inputs(all, down);
    return all;
  }

  std::vector<at::Tensor*> saved() {
    std::vector<at::Tensor*> all{&gate, &up};
    add_saved(all, down);
    return all;
  }

  at::Tensor forward(Values values) {
    Lora lora = Lora::of(down);
    const bool unread = values == Values::kUnread;
    const at::Tensor weight = down.weight.values_if(!unread || lora.magnitude.defined());
    if (lora.magnitude.defined()) lora_norms = lora.norms = lora.norms_of(weight, transposed);
    if (unread) {
      return unread_values(up.size(0), output_width(down.weight, transposed), up.options());
    }
    return adapted_product(activated(gate, up, activation), weight, down.bias, lora, transposed);
  }

  void backward(const Gradients& grads, InputGradients& gradients) {
    if (gate.defined()) gate = gate.detach();
    up = up.detach();
    Lora lora = Lora::of(down);
    lora.norms = lora_norms;
    const at::Tensor weight =
        down.weight.values_if(gradients.wanted(1) || lora.magnitude.defined());
    at::Tensor value = activated(gate, up, activation);
    if (gradients.wanted(kFirst + kBiasInput)) {
      gradients[kFirst + kBiasInput] = row_sum(grads[0]);
    }
    const LoraGradients own =
        lora_gradients(gradients, kFirst + kLoraInput, grads[0], value, weight, lora, transposed);
    if (gradients.wanted(kFirst)) {
      own.add_weight_gradient(gradients, kFirst, value, lora, transposed);
    }
    if (!gradients.wanted(1)) return;
    at::mm_out(value, own.product, transposed ? weight.t() : weight);
    own.add_to_input(value, weight, lora, transposed);
    activated_backward(value, gate, up, activation);
    gradients[0] = gate;
    gradients[1] = up;
  }
};

// The inputs are x and the branch.
struct Residual {
  double scale;
  at::Tensor factor;

  at::Tensor forward(const at::Tensor& x, const at::Tensor& branch) const {
    LONGSHORE_CHECK(x.sizes() == branch.sizes()) << "a residual of another shape";
    return unread_values(x.size(0), x.size(1), x.options());
  }
  std::vector<at::Tensor*> saved() { return {&factor}; }
  void backward(const Gradients& grads, InputGradients& gradients) const {
    const at::Tensor grad = factor.defined() ? grads[0] * factor : grads[0];
    gradients[0] = grad;
    gradients[1] = scale == 1.0 ? grad : grad * scale;
  }
};

}  // namespace

at::Tensor normalise(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     NormKind kind, double eps) {
  return run_operation(Normalise{x, {weight, bias, kind, eps}}, {x, weight, bias});
}

std::vector<at::Tensor> linear_group(const at::Tensor& x, const NormWeights& norm,
                                     std::span<const LinearWeights> weights, bool transposed,
                                     Values values) {
  LinearGroup group{x, norm, {weights.begin(), weights.end()}, transposed};
  const std::vector<at::Tensor> inputs = group.inputs();
  return run_operation(std::move(group), inputs, values);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionShape& shape, const std::vector<int64_t>& document_starts,
                  const at::Tensor& sinks, const AttentionPlace& place) {
  return run_operation(Attention{q, k, v, sinks, shape, document_starts}, {q, k, v, sinks}, place);
}

at::Tensor activate_and_project(const at::Tensor& gate, const at::Tensor& up,
                                const LinearWeights& down, Activation activation, bool transposed,
                                Values values) {
  ActivateAndProject operation{gate, up, down, activation, transposed};
  const std::vector<at::Tensor> inputs = operation.inputs();
  return run_operation(std::move(operation), inputs, values);
}

at::Tensor residual_graph(const at::Tensor& x, const at::Tensor& branch, double scale,
                          const at::Tensor& factor) {
  return run_operation(Residual{scale, factor}, {x, branch}, x, branch);
}

}  // namespace longshore
