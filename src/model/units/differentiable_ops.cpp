#include "model/units/differentiable_ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include <bit>
#include <cmath>

#include "base/errors.h"
#include "model/attention/document_attention.h"
#include "model/ops/fused_ops.h"
#include "model/units/adapted_product.h"

namespace longshore {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The norm's settings that a node of the graph saves.
struct NormRule {
  NormKind kind;
  double eps;

  static NormRule from(AutogradContext* ctx) {
    return {static_cast<NormKind>(ctx->saved_data["kind"].toInt()),
            ctx->saved_data["eps"].toDouble()};
  }
  void save(AutogradContext* ctx) const {
    ctx->saved_data["kind"] = static_cast<int64_t>(kind);
    ctx->saved_data["eps"] = eps;
  }
  // `parameters` holds the weight and, if the norm has one, the bias.
  at::Tensor forward(const at::Tensor& x, at::TensorList parameters) const {
    return fused::norm(x, parameters[0], parameters.size() > 1 ? parameters[1] : at::Tensor(), kind,
                       eps);
  }
};

// Returns the gradients of x and the norm's parameters, which are the node's inputs from `first`.
variable_list norm_gradients(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& x,
                             const variable_list& parameters, size_t first, const NormRule& rule) {
  const at::Tensor& weight = parameters[0];
  const auto sums = weight.options().dtype(at::kFloat).requires_grad(false);
  std::vector<at::Tensor> wanted(2);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (ctx->needs_input_grad(first + i)) wanted[i] = at::zeros_like(weight, sums);
  }
  variable_list result;
  result.push_back(
      fused::norm_backward(grad, x, weight, rule.kind, rule.eps, wanted[0], wanted[1]));
  for (size_t i = 0; i < parameters.size(); ++i) {
    result.push_back(wanted[i].defined() ? wanted[i].to(weight.scalar_type()) : at::Tensor());
  }
  return result;
}

struct NormFunction : Function<NormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList parameters,
                            int64_t kind, double eps) {
    variable_list saved{x};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(saved);
    const NormRule rule{static_cast<NormKind>(kind), eps};
    rule.save(ctx);
    return rule.forward(x, parameters);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result = norm_gradients(ctx, grads[0], saved[0], {saved.begin() + 1, saved.end()},
                                          1, NormRule::from(ctx));
    result.resize(result.size() + 2);
    return result;
  }
};

// Saves the dropout of an adapter in a node; the saved keys are those of the micro-batch.
void save(AutogradContext* ctx, const InputDropout& dropout) {
  if (!dropout.drops()) return;
  ctx->saved_data["keys"] = dropout.keys;
  ctx->saved_data["share"] = dropout.share;
}

// Returns the dropout that a node saved, for an adapter with this stream.
InputDropout saved_dropout(AutogradContext* ctx, int64_t stream) {
  const auto keys = ctx->saved_data.find("keys");
  if (keys == ctx->saved_data.end()) return {};
  return {keys->second.toTensor(), ctx->saved_data["share"].toDouble(), stream};
}

// Returns a [rows, columns] tensor for values that are never read. Its elements share one memory
// location, so LibTorch reports an error if it is written.
at::Tensor unread_values(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  return at::empty_strided({rows, columns}, {0, 0}, options.requires_grad(false));
}

int64_t output_width(const at::Tensor& weight, bool transposed) {
  return weight.size(transposed ? 1 : 0);
}

// `parameters` holds the matrices, then one bias for each or none, then the `lora_tensors` of each
// adapted matrix (A, B and, with DoRA, the magnitude), then the norm's parameters. Bit i of
// `adapted` says that matrix i has an adapter. `dropout` is that of all adapters, but for their
// streams: `streams` has one for each matrix.
struct LinearGroupFunction : Function<LinearGroupFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList parameters,
                               int64_t matrices, int64_t biases, int64_t adapted,
                               int64_t lora_tensors, double scaling, bool transposed, int64_t kind,
                               double eps, bool unread, const InputDropout& dropout,
                               const std::vector<int64_t>& streams) {
    const auto first_lora = static_cast<size_t>(matrices + biases);
    const auto first_norm = first_lora + lora_count(adapted, lora_tensors);
    const at::TensorList norm = parameters.slice(first_norm);
    variable_list saved{x};
    saved.insert(saved.end(), parameters.begin(), parameters.begin() + matrices);
    const at::TensorList rest = parameters.slice(first_lora);
    saved.insert(saved.end(), rest.begin(), rest.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["transposed"] = transposed;
    ctx->saved_data["biases"] = biases;
    ctx->saved_data["adapted"] = adapted;
    ctx->saved_data["lora_tensors"] = lora_tensors;
    ctx->saved_data["scaling"] = scaling;
    ctx->saved_data["streams"] = c10::List<int64_t>(at::ArrayRef<int64_t>(streams));
    save(ctx, dropout);
    const NormRule rule{static_cast<NormKind>(kind), eps};
    rule.save(ctx);
    const at::Tensor in = norm.empty() || unread ? x : rule.forward(x, norm);
    variable_list out;
    std::vector<at::Tensor> norms;  // those of DoRA, which backward reads
    std::vector<Lora> loras = loras_of(rest, adapted, lora_tensors, scaling, dropout, streams);
    if (!unread) join_inner(in, loras);
    for (size_t i = 0; i < static_cast<size_t>(matrices); ++i) {
      const at::Tensor& weight = parameters[i];
      Lora& lora = loras[i];
      if (lora.magnitude.defined()) norms.push_back(lora.norms = lora.norms_of(weight, transposed));
      if (unread) {
        out.push_back(unread_values(x.size(0), output_width(weight, transposed), x.options()));
        continue;
      }
      const at::Tensor bias =
          biases > 0 ? parameters[static_cast<size_t>(matrices) + i] : at::Tensor();
      out.push_back(adapted_product(in, weight, bias, lora, transposed));
    }
    ctx->saved_data["norms"] = std::move(norms);
    return out;
  }

  // Returns the adapter of each matrix, undefined ones included. `tensors` begins with theirs.
  static std::vector<Lora> loras_of(at::TensorList tensors, int64_t adapted, int64_t lora_tensors,
                                    double scaling, const InputDropout& dropout,
                                    const std::vector<int64_t>& streams) {
    std::vector<Lora> loras;
    size_t at = 0;
    for (size_t i = 0; i < streams.size(); ++i) {
      const bool has = ((adapted >> i) & 1) != 0;
      const size_t count = has ? static_cast<size_t>(lora_tensors) : 0;
      loras.push_back(Lora::of(tensors.slice(at, count), scaling));
      loras.back().dropout = {dropout.keys, dropout.share, streams[i]};
      at += count;
    }
    return loras;
  }
  static size_t lora_count(int64_t adapted, int64_t lora_tensors) {
    return static_cast<size_t>(lora_tensors) *
           static_cast<size_t>(std::popcount(static_cast<uint64_t>(adapted)));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool transposed = ctx->saved_data["transposed"].toBool();
    const auto biases = static_cast<size_t>(ctx->saved_data["biases"].toInt());
    const int64_t adapted = ctx->saved_data["adapted"].toInt();
    const int64_t lora_tensors = ctx->saved_data["lora_tensors"].toInt();
    const double scaling = ctx->saved_data["scaling"].toDouble();
    const std::vector<at::Tensor> norms = ctx->saved_data["norms"].toTensorVector();
    const std::vector<int64_t> streams = ctx->saved_data["streams"].toIntVector();
    const size_t matrices = grads.size();
    const size_t lora_parameters = lora_count(adapted, lora_tensors);
    const variable_list norm(saved.begin() + static_cast<int64_t>(1 + matrices + lora_parameters),
                             saved.end());
    // Backward recomputes this with the code of forward: the bits are equal and no graph keeps it.
    at::Tensor in = norm.empty() ? saved[0] : NormRule::from(ctx).forward(saved[0], norm);
    variable_list result(1 + matrices + biases + lora_parameters);
    // The norm's parameters need the gradient of its output even where x needs none.
    bool through = ctx->needs_input_grad(0);
    for (size_t i = 0; i < norm.size(); ++i) {
      through = through || ctx->needs_input_grad(result.size() + i);
    }
    std::vector<Lora> loras = loras_of(at::TensorList(saved).slice(1 + matrices), adapted,
                                       lora_tensors, scaling, saved_dropout(ctx, 0), streams);
    const bool joined = join_inner(in, loras);
    std::vector<at::Tensor> inner, a;        // of joined adapters: what flows to x through A
    size_t lora_at = 1 + matrices + biases;  // A's place in the result
    size_t magnitudes = 0;
    for (size_t i = 0; i < matrices; ++i) {
      Lora& lora = loras[i];
      if (lora.magnitude.defined()) lora.norms = norms.at(magnitudes++);
      const at::Tensor& weight = saved[i + 1];
      const LoraGradients own =
          lora_gradients(ctx, grads[i], in, weight, lora, transposed, lora_at, result);
      if (lora.a.defined()) lora_at += static_cast<size_t>(lora_tensors);
      const at::Tensor matrix = transposed ? weight.t() : weight;
      if (through) {
        result[0] = i == 0 ? at::mm(own.product, matrix) : result[0].addmm_(own.product, matrix);
        if (!joined) own.add_to_input(result[0], weight, lora, transposed);
      }
      if (joined && lora.a.defined()) {
        inner.push_back(own.inner);
        a.push_back(lora.a);
      }
      if (ctx->needs_input_grad(1 + i)) {
        result[1 + i] = own.weight_gradient_of(weight, in, lora, transposed);
      }
      if (biases > 0 && ctx->needs_input_grad(1 + matrices + i)) {
        result[1 + matrices + i] = row_sum(grads[i]);
      }
    }
    in.reset();
    if (joined && through) result[0].addmm_(at::cat(inner, 1), at::cat(a));
    if (!norm.empty() && !through) result.resize(result.size() + norm.size());
    if (!norm.empty() && through) {
      variable_list own =
          norm_gradients(ctx, result[0], saved[0], norm, result.size(), NormRule::from(ctx));
      result[0] = std::move(own[0]);
      result.insert(result.end(), own.begin() + 1, own.end());
    }
    result.resize(result.size() + 11);
    return result;
  }
};

AttentionShape shape_from(const c10::List<int64_t>& sizes, double scale, double cap) {
  return {.heads = sizes[0],
          .kv_heads = sizes[1],
          .head_dim = sizes[2],
          .window = sizes[3],
          .scale = scale,
          .cap = cap};
}

struct AttentionFunction : Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const AttentionShape& shape,
                            const std::vector<int64_t>& document_starts,
                            const AttentionPlace& place, at::TensorList sinks) {
    const AttentionResult result = attend_at(place, q, k, v, shape, document_starts,
                                             sinks.empty() ? at::Tensor() : sinks.front());
    variable_list saved{q, k, v, result.out};
    saved.insert(saved.end(), sinks.begin(), sinks.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["sums"] = c10::List<at::Tensor>(at::ArrayRef<at::Tensor>(result.sums));
    ctx->saved_data["sizes"] =
        c10::List<int64_t>({shape.heads, shape.kv_heads, shape.head_dim, shape.window});
    ctx->saved_data["scale"] = shape.scale;
    ctx->saved_data["cap"] = shape.cap;
    ctx->saved_data["starts"] = c10::List<int64_t>(at::ArrayRef<int64_t>(document_starts));
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const AttentionShape shape =
        shape_from(ctx->saved_data["sizes"].toIntList(), ctx->saved_data["scale"].toDouble(),
                   ctx->saved_data["cap"].toDouble());
    const AttentionResult result{saved[3], ctx->saved_data["sums"].toTensorVector()};
    ctx->saved_data.erase("sums");
    variable_list gradients = attend_backward(grads[0], saved[0], saved[1], saved[2], result, shape,
                                              ctx->saved_data["starts"].toIntVector(),
                                              saved.size() > 4 ? saved[4] : at::Tensor());
    // The inputs shape, document_starts and place have no gradient.
    gradients.insert(gradients.begin() + 3, 3, at::Tensor());
    return gradients;
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

// `inputs` holds gate and up, or up alone. `parameters` holds the matrix, then the bias if there is
// one, then the `lora_tensors` of the adapter if there is one.
struct ProjectFunction : Function<ProjectFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs, at::TensorList parameters,
                            int64_t lora_tensors, double scaling, int64_t activation,
                            bool transposed, bool unread, const InputDropout& dropout) {
    const at::TensorList loras =
        parameters.slice(parameters.size() - static_cast<size_t>(lora_tensors));
    const bool biased = parameters.size() - loras.size() > 1;
    variable_list saved(inputs.begin(), inputs.end());
    saved.push_back(parameters[0]);
    saved.insert(saved.end(), loras.begin(), loras.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    ctx->saved_data["scaling"] = scaling;
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["transposed"] = transposed;
    ctx->saved_data["biased"] = biased;
    ctx->saved_data["stream"] = dropout.stream;
    save(ctx, dropout);
    Lora lora = Lora::of(loras, scaling);
    lora.dropout = dropout;
    if (lora.magnitude.defined()) {
      lora.norms = lora.norms_of(parameters[0], transposed);
      ctx->saved_data["norms"] = lora.norms;
    }
    if (unread) {
      return unread_values(inputs.back().size(0), output_width(parameters[0], transposed),
                           inputs.back().options());
    }
    const bool gated = inputs.size() > 1;
    const at::Tensor value = activated(gated ? inputs[0] : at::Tensor(), inputs[gated ? 1 : 0],
                                       static_cast<Activation>(activation));
    return adapted_product(value, parameters[0], biased ? parameters[1] : at::Tensor(), lora,
                           transposed);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list saved = ctx->get_saved_variables();
    const auto activation = static_cast<Activation>(ctx->saved_data["activation"].toInt());
    const bool transposed = ctx->saved_data["transposed"].toBool();
    const auto inputs = static_cast<size_t>(ctx->saved_data["inputs"].toInt());
    const at::Tensor gate = inputs > 1 ? saved[0].detach() : at::Tensor();
    const at::Tensor up = saved[inputs - 1].detach(), weight = saved[inputs];
    const at::TensorList loras = at::TensorList(saved).slice(inputs + 1);
    Lora lora = Lora::of(loras, ctx->saved_data["scaling"].toDouble());
    if (lora.magnitude.defined()) lora.norms = ctx->saved_data["norms"].toTensor();
    lora.dropout = saved_dropout(ctx, ctx->saved_data["stream"].toInt());
    at::Tensor value = activated(gate, up, activation);
    variable_list result(inputs + 1);
    if (ctx->saved_data["biased"].toBool()) {
      result.emplace_back(ctx->needs_input_grad(inputs + 1) ? row_sum(grads[0]) : at::Tensor());
    }
    const size_t lora_at = result.size();
    result.resize(lora_at + loras.size());
    const LoraGradients own =
        lora_gradients(ctx, grads[0], value, weight, lora, transposed, lora_at, result);
    if (ctx->needs_input_grad(inputs)) {
      result[inputs] = own.weight_gradient_of(weight, value, lora, transposed);
    }
    if (ctx->needs_input_grad(inputs - 1)) {
      at::mm_out(value, own.product, transposed ? weight.t() : weight);
      own.add_to_input(value, weight, lora, transposed);
      activated_backward(value, gate, up, activation);
      if (inputs > 1) result[0] = gate;
      result[inputs - 1] = up;
    }
    result.resize(result.size() + 6);
    return result;
  }
};

struct ResidualGraph : Function<ResidualGraph> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& branch,
                            double scale, at::TensorList factor) {
    LONGSHORE_CHECK(x.sizes() == branch.sizes()) << "a residual of another shape";
    ctx->saved_data["scale"] = scale;
    ctx->save_for_backward(factor.vec());
    return unread_values(x.size(0), x.size(1), x.options());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const double scale = ctx->saved_data["scale"].toDouble();
    const variable_list factor = ctx->get_saved_variables();
    const at::Tensor grad = factor.empty() ? grads[0] : grads[0] * factor[0];
    variable_list result{grad, scale == 1.0 ? grad : grad * scale};
    result.resize(3 + factor.size());
    return result;
  }
};

}  // namespace

at::Tensor normalise(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     NormKind kind, double eps) {
  std::vector<at::Tensor> parameters{weight};
  if (bias.defined()) parameters.push_back(bias);
  return NormFunction::apply(x, at::TensorList(parameters), static_cast<int64_t>(kind), eps);
}

std::vector<at::Tensor> linear_group(const at::Tensor& x, const NormWeights& norm,
                                     std::span<const LinearWeights> weights, bool transposed,
                                     Values values) {
  std::vector<at::Tensor> parameters;
  for (const LinearWeights& one : weights) parameters.push_back(one.weight);
  for (const LinearWeights& one : weights) {
    LONGSHORE_CHECK(one.bias.defined() == weights[0].bias.defined()) << "biases: all or none";
    if (one.bias.defined()) parameters.push_back(one.bias);
  }
  const size_t biases = parameters.size() - weights.size();
  int64_t adapted = 0;
  size_t each = 0;  // tensors of an adapter
  InputDropout dropout;
  std::vector<int64_t> streams;
  for (size_t i = 0; i < weights.size(); ++i) {
    streams.push_back(weights[i].lora_dropout.stream);
    if (!weights[i].lora_a.defined()) continue;
    adapted |= int64_t{1} << i;
    dropout = weights[i].lora_dropout;
    const std::vector<at::Tensor> loras = Lora::tensors_of(weights[i]);
    LONGSHORE_CHECK(each == 0 || each == loras.size()) << "magnitudes: all or none";
    each = loras.size();
    parameters.insert(parameters.end(), loras.begin(), loras.end());
  }
  if (norm.weight.defined()) parameters.push_back(norm.weight);
  if (norm.bias.defined()) parameters.push_back(norm.bias);
  return LinearGroupFunction::apply(
      x, at::TensorList(parameters), static_cast<int64_t>(weights.size()),
      static_cast<int64_t>(biases), adapted, static_cast<int64_t>(each), weights[0].lora_scaling,
      transposed, static_cast<int64_t>(norm.kind), norm.eps, values == Values::kUnread, dropout,
      streams);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionShape& shape, const std::vector<int64_t>& document_starts,
                  const at::Tensor& sinks, const AttentionPlace& place) {
  const std::vector<at::Tensor> list(sinks.defined() ? 1 : 0, sinks);
  return AttentionFunction::apply(q, k, v, shape, document_starts, place, at::TensorList(list));
}

at::Tensor activate_and_project(const at::Tensor& gate, const at::Tensor& up,
                                const LinearWeights& down, Activation activation, bool transposed,
                                Values values) {
  std::vector<at::Tensor> inputs, parameters{down.weight};
  if (gate.defined()) inputs.push_back(gate);
  inputs.push_back(up);
  if (down.bias.defined()) parameters.push_back(down.bias);
  const std::vector<at::Tensor> loras = Lora::tensors_of(down);
  parameters.insert(parameters.end(), loras.begin(), loras.end());
  return ProjectFunction::apply(at::TensorList(inputs), at::TensorList(parameters),
                                static_cast<int64_t>(loras.size()), down.lora_scaling,
                                static_cast<int64_t>(activation), transposed,
                                values == Values::kUnread, down.lora_dropout);
}

at::Tensor residual_graph(const at::Tensor& x, const at::Tensor& branch, double scale,
                          const at::Tensor& factor) {
  const std::vector<at::Tensor> list(factor.defined() ? 1 : 0, factor);
  return ResidualGraph::apply(x, branch, scale, at::TensorList(list));
}

}  // namespace longshore
