#include "trainer/verify/plain_layer.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "base/errors.h"

namespace longshore {

at::Tensor plain_scaled(const at::Tensor& x, double eps) {
  return x / at::sqrt((x * x).mean(-1, true) + eps);
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      NormKind kind, double eps) {
  const at::Tensor centred = kind == NormKind::kLayer ? x - x.mean(-1, true) : x;
  const at::Tensor y =
      plain_scaled(centred, eps) * (kind == NormKind::kRmsOffset ? weight + 1.0 : weight);
  return bias.defined() ? y + bias : y;
}

at::Tensor plain_activation(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return x * at::sigmoid(x);
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1.0 + at::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1.0 + at::erf(x / std::numbers::sqrt2));
    case Activation::kRelu:
      return at::clamp_min(x, 0.0);
    case Activation::kReluSquared:
      return at::square(at::clamp_min(x, 0.0));
  }
  throw CheckFailure("an activation without a formula");
}

at::Tensor plain_rotated(const at::Tensor& x, const RopeSpec& rope, int64_t head_dim) {
  const int64_t positions = x.size(1), dim = rope.rotary_dim(head_dim);
  const at::Tensor angles =
      at::outer(at::arange(positions, at::kDouble),
                at::tensor(plain_frequencies(rope, head_dim, positions), at::kDouble));
  const at::Tensor cosine = angles.cos() * rope.attention_factor;
  const at::Tensor sine = angles.sin() * rope.attention_factor;
  const at::Tensor turned = x.narrow(2, 0, dim);
  at::Tensor a, b;
  if (rope.pairs) {
    a = turned.slice(2, 0, dim, 2), b = turned.slice(2, 1, dim, 2);
  } else {
    a = turned.narrow(2, 0, dim / 2), b = turned.narrow(2, dim / 2, dim / 2);
  }
  const at::Tensor left = a * cosine - b * sine, right = b * cosine + a * sine;
  const at::Tensor both =
      rope.pairs ? at::stack({left, right}, 3).flatten(2) : at::cat({left, right}, 2);
  return at::cat({both, x.narrow(2, dim, head_dim - dim)}, 2);
}

at::Tensor plain_convolved(const at::Tensor& x, const at::Tensor& taps) {
  const int64_t count = taps.size(2);
  const at::Tensor before = at::cat({at::zeros({count - 1, x.size(1)}, x.options()), x}, 0);
  at::Tensor sum = at::zeros_like(x);
  for (int64_t tap = 0; tap < count; ++tap) {
    sum = sum + before.narrow(0, tap, x.size(0)) * taps.squeeze(1).select(1, tap);
  }
  return sum;
}

at::Tensor hidden_keys(int64_t positions, int64_t window) {
  const at::Tensor row = at::arange(positions).unsqueeze(1), column = at::arange(positions);
  at::Tensor hidden = column > row;
  if (window > 0) hidden = hidden.logical_or(column <= row - window);
  return hidden;
}

PlainDecoder::Layer::Layer(const PlainDecoder& decoder, int64_t number, const Weights& weights)
    : decoder_(decoder), number_(number), weights_(weights) {
  for (const ModuleParameter& parameter :
       number == kNoLayer ? input_parameters(decoder.arch_, decoder.prefix_)
                          : block_parameters(decoder.arch_, decoder.prefix_, number)) {
    names_[{parameter.module, parameter.role, parameter.expert}] = parameter.spec.name;
    if (parameter.role == ParameterRole::kLoraA) scalings_[parameter.module] = parameter.scaling;
  }
}

at::Tensor plain_product(const Linear& linear, const at::Tensor& x) {
  const at::Tensor &weight = linear.weight.stored, &a = linear.lora.a, &b = linear.lora.b;
  at::Tensor y = at::matmul(x, linear.transposed ? weight : weight.transpose(0, 1));
  if (a.defined()) {
    const double scaling = linear.lora.scaling;
    y = y + scaling * at::matmul(at::matmul(x, a.transpose(0, 1)), b.transpose(0, 1));
    if (linear.lora.magnitude.defined()) {
      const at::Tensor sum =
          (linear.transposed ? weight.transpose(0, 1) : weight) + scaling * at::matmul(b, a);
      // An output of zero weights has the magnitude 0 and stays zero.
      const double least = std::numeric_limits<float>::min();
      y = y * (linear.lora.magnitude / sum.square().sum(1).sqrt().clamp_min(least));
    }
  }
  return linear.bias.defined() ? y + linear.bias : y;
}

Linear PlainDecoder::Layer::matrix(Module module) const {
  return {.weight = {.stored = get(module)},
          .bias = get(module, ParameterRole::kBias),
          .lora = {.a = get(module, ParameterRole::kLoraA),
                   .b = get(module, ParameterRole::kLoraB),
                   .magnitude = get(module, ParameterRole::kLoraMagnitude),
                   .scaling = scaling_of(module)},
          .transposed = decoder_.arch_.transposed_weights};
}

Linear PlainDecoder::Layer::matrix(Module module, Module of_all, int64_t expert) const {
  Linear one{.weight = {.stored = get(module, of_all, ParameterRole::kWeight, expert)},
             .bias = get(module, of_all, ParameterRole::kBias, expert),
             .lora = {.scaling = scaling_of(of_all)},
             .transposed = decoder_.arch_.moe.transposed};
  const at::Tensor a = get(of_all, ParameterRole::kLoraA);
  if (!a.defined()) return one;
  one.lora.a = a.select(0, expert);
  one.lora.b = get(of_all, ParameterRole::kLoraB).select(0, expert);
  const int64_t outputs = one.outputs();
  if (one.lora.b.size(0) > outputs) {  // the adapter has gate and up as one matrix, not the files
    one.lora.b = one.lora.b.narrow(0, module == Module::kExpertUp ? outputs : 0, outputs);
  }
  return one;
}

at::Tensor PlainDecoder::Layer::norm(Module module, const at::Tensor& x) const {
  const at::Tensor weight = get(module);
  if (!weight.defined()) return x;
  const ArchSpec& arch = decoder_.arch_;
  const bool post = module == Module::kAttentionPostNorm || module == Module::kMlpPostNorm;
  return plain_norm(x, weight, get(module, ParameterRole::kBias), arch.norm,
                    post && arch.post_norm_eps ? *arch.post_norm_eps : arch.norm_eps);
}

}  // namespace longshore
