#include "model/units/differentiable_ops.h"

#include <utility>

#include "base/errors.h"
#include "model/attention/document_attention.h"
#include "model/ops/fused_ops.h"
#include "model/ops/graph_operation.h"
#include "model/units/row_products.h"

namespace longshore {
namespace {

using Gradients = std::vector<at::Tensor>;

at::Tensor normed(const at::Tensor& x, const NormWeights& norm) {
  return fused::norm(x, norm.weight, norm.bias, norm.kind, norm.eps);
}

// NodeSink: the gradients of a node's inputs as those of parameters. Lives for one backward.
class NodeSink final : public GradientSink {
 public:
  explicit NodeSink(InputGradients* gradients) : gradients_(gradients) {}

  bool wants(int32_t input) const override {
    return gradients_->wanted(static_cast<size_t>(input));
  }
  void add(int32_t input, const at::Tensor& grad) override {
    (*gradients_)[static_cast<size_t>(input)] = grad;
  }
  void add_product(int32_t input, const at::Tensor& left, const at::Tensor& right) override {
    gradients_->add_product(static_cast<size_t>(input), left, right);
  }
  void add_rows(int32_t, const at::Tensor&, const at::Tensor&) override {
    LONGSHORE_CHECK(false) << "a node has no table";
  }
  void add_product_at(int32_t, int64_t, const at::Tensor&, const at::Tensor&) override {
    LONGSHORE_CHECK(false) << "a node has no stacked matrices";
  }

 private:
  InputGradients* gradients_;
};

// Sets the gradient of x, the node's input 0, and those of the norm's weight and bias, the inputs
// from `place`. `grad` is that of the norm's output.
void norm_backward(InputGradients& gradients, int32_t place, const at::Tensor& grad,
                   const at::Tensor& x, const NormWeights& norm) {
  const NormGradients own(norm, place, place + 1, NodeSink(&gradients));
  gradients[0] = own.backward(grad, x);
  const auto set = [&](int32_t input, const at::Tensor& sum) {
    if (sum.defined()) gradients[static_cast<size_t>(input)] = sum.to(norm.weight.scalar_type());
  };
  set(place, own.weight);
  set(place + 1, own.bias);
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

// Makes the parameters of a Linear the next inputs of a node, in the order of their roles.
void add_inputs(std::vector<at::Tensor>& inputs, Linear& one) {
  auto input = static_cast<int32_t>(inputs.size());
  for (ParameterPlace& place : one.places) place = {.index = input++};
  inputs.insert(inputs.end(),
                {one.weight.stored, one.bias, one.lora.a, one.lora.b, one.lora.magnitude});
}

// Adds what a Linear saves. Backward does not read the bias.
void add_saved(std::vector<at::Tensor*>& saved, Linear& one) {
  saved.insert(saved.end(), {&one.weight.stored, &one.lora.a, &one.lora.b, &one.lora.magnitude});
}

// The inputs are x, the norm's weight and bias, and those of each product.
struct LinearGroup {
  at::Tensor x;
  NormWeights norm;
  std::vector<Linear> linears;

  std::vector<at::Tensor> inputs() {
    std::vector<at::Tensor> all{x, norm.weight, norm.bias};
    for (Linear& one : linears) add_inputs(all, one);
    return all;
  }

  std::vector<at::Tensor*> saved() {
    std::vector<at::Tensor*> all{&x, &norm.weight, &norm.bias};
    for (Linear& one : linears) add_saved(all, one);
    return all;
  }

  // Backward computes this again with the same code: the bits are equal and no graph keeps it.
  at::Tensor input() const { return norm.weight.defined() ? normed(x, norm) : x; }

  std::vector<at::Tensor> forward(Values values) {
    const bool unread = values == Values::kUnread;
    const at::Tensor in = unread ? x : input();
    std::vector<at::Tensor> out;
    std::vector<Linear> joined = linears;
    if (!unread) join_inner(in, joined);
    for (size_t i = 0; i < linears.size(); ++i) {
      Linear one = joined[i].unpack(!unread || joined[i].lora.magnitude.defined());
      one.set_norms();
      linears[i].lora.norms = one.lora.norms;
      out.push_back(unread ? unread_values(x.size(0), linears[i].outputs(), x.options())
                           : one.product(in));
    }
    return out;
  }

  void backward(const Gradients& grads, InputGradients& gradients) {
    NodeSink sink(&gradients);
    at::Tensor in = input();
    const bool joined = join_inner(in, linears);
    // The norm's parameters need the gradient of its output even where x needs none.
    const bool through = gradients.wanted(0) || gradients.wanted(1) || gradients.wanted(2);
    at::Tensor sum;                    // the gradient of `in`
    std::vector<at::Tensor> inner, a;  // of joined adapters: what flows to x through A
    for (size_t i = 0; i < linears.size(); ++i) {
      const Linear one = linears[i].unpack(through || linears[i].lora.magnitude.defined());
      const auto own = LinearGradients::of(one, grads[i], in, sink);
      if (through) {
        if (i == 0) {
          sum = one.input_gradient(own.product);
        } else {
          sum.addmm_(own.product, one.matrix_for(sum).t());
        }
        if (!joined) own.add_to_input(one, sum);
      }
      if (joined && one.lora.a.defined()) {
        inner.push_back(own.inner);
        a.push_back(one.lora.a);
      }
      own.add_weight(one, in, sink);
      one.add_bias_gradient(sink, grads[i]);
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

at::Tensor activated(const at::Tensor& gate, const at::Tensor& up, Activation activation,
                     bool by_row) {
  const bool gated = gate.defined();
  if (fused::glu_has(activation)) {
    return fused::glu(gated ? gate : up, gated ? up : at::Tensor(), activation);
  }
  if (by_row) {
    const at::Tensor value = fused::each_row(
        gated ? gate : up, [&](const at::Tensor& row) { return activate(row, activation); });
    return gated ? value.mul_(up) : value;
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
  at::Tensor gate, up;
  Linear down;
  Activation activation;

  std::vector<at::Tensor> inputs() {
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
    const bool unread = values == Values::kUnread;
    Linear own = down.unpack(!unread || down.lora.magnitude.defined());
    own.set_norms();
    down.lora.norms = own.lora.norms;
    if (unread) return unread_values(up.size(0), down.outputs(), up.options());
    return own.product(activated(gate, up, activation, own.by_row));
  }

  void backward(const Gradients& grads, InputGradients& gradients) {
    if (gate.defined()) gate = gate.detach();
    up = up.detach();
    NodeSink sink(&gradients);
    const Linear one = down.unpack(gradients.wanted(1) || down.lora.magnitude.defined());
    at::Tensor value = activated(gate, up, activation);
    one.add_bias_gradient(sink, grads[0]);
    const auto own = LinearGradients::of(one, grads[0], value, sink);
    own.add_weight(one, value, sink);
    if (!gradients.wanted(1)) return;
    at::mm_out(value, own.product, one.matrix_for(value).t());
    own.add_to_input(one, value);
    activated_backward(value, gate, up, activation);
    gradients[0] = gate;
    gradients[1] = up;
  }
};

// The input is the graph whose values lie in `place`.
struct Given {
  // The place's own tensor gets no graph.
  at::Tensor forward(const at::Tensor& place) const { return place.detach(); }
  std::vector<at::Tensor*> saved() { return {}; }
  void backward(const Gradients& grads, InputGradients& gradients) const {
    gradients[0] = grads[0];
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

NormGradients::NormGradients(NormWeights of, int32_t weight_place, int32_t bias_place,
                             const GradientSink& sink)
    : norm(std::move(of)), places{weight_place, bias_place} {
  const auto sums = norm.weight.options().dtype(at::kFloat).requires_grad(false);
  const auto sum_for = [&](int32_t place) {
    const bool wants = place >= 0 && sink.wants(place);
    return wants ? at::zeros(norm.weight.sizes(), sums) : at::Tensor();
  };
  weight = sum_for(weight_place);
  bias = sum_for(bias_place);
}

at::Tensor NormGradients::backward(const at::Tensor& grad, const at::Tensor& x) const {
  return fused::norm_backward(grad, x, norm.weight, norm.kind, norm.eps, weight, bias);
}

void NormGradients::add_to(GradientSink& sink) const {
  if (weight.defined()) sink.add(places[0], weight);
  if (bias.defined()) sink.add(places[1], bias);
}

at::Tensor normalise(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     NormKind kind, double eps) {
  return run_operation(Normalise{x, {weight, bias, kind, eps}}, {x, weight, bias});
}

std::vector<at::Tensor> linear_group(const at::Tensor& x, const NormWeights& norm,
                                     std::span<const Linear> linears, Values values) {
  LinearGroup group{x, norm, {linears.begin(), linears.end()}};
  const std::vector<at::Tensor> inputs = group.inputs();
  return run_operation(std::move(group), inputs, values);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionShape& shape, const std::vector<int64_t>& document_starts,
                  const at::Tensor& sinks, const AttentionPlace& place) {
  return run_operation(Attention{q, k, v, sinks, shape, document_starts}, {q, k, v, sinks}, place);
}

at::Tensor activate_and_project(const at::Tensor& gate, const at::Tensor& up, const Linear& down,
                                Activation activation, Values values) {
  ActivateAndProject operation{gate, up, down, activation};
  const std::vector<at::Tensor> inputs = operation.inputs();
  return run_operation(std::move(operation), inputs, values);
}

at::Tensor kept_result(const at::Tensor& x, const at::Tensor& place, bool filled) {
  if (!place.defined()) return x;
  LONGSHORE_CHECK(x.sizes() == place.sizes()) << "a kept result of another shape";
  if (filled) return run_operation(Given{}, {x}, place);
  const at::NoGradGuard no_grad;
  place.copy_(x);
  return x;
}

at::Tensor residual_graph(const at::Tensor& x, const at::Tensor& branch, double scale,
                          const at::Tensor& factor) {
  return run_operation(Residual{scale, factor}, {x, branch}, x, branch);
}

}  // namespace longshore
