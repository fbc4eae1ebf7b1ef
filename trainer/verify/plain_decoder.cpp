#include "trainer/verify/plain_decoder.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "trainer/verify/plain_layer.h"
#include "trainer/verify/plain_mixers.h"

namespace longshore {
namespace {

// If router scores differ by less than this share of their size, fp32 may choose other experts.
constexpr double kSureChoice = 2e-5;

double yarn_dimension(const RopeSpec& rope, int64_t dim, double turns) {
  const auto positions = static_cast<double>(rope.original_max_positions);
  return static_cast<double>(dim) * std::log(positions / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

double yarn_frequency(const RopeSpec& rope, int64_t dim, int64_t pair, double frequency) {
  double low = yarn_dimension(rope, dim, rope.beta_fast);
  double high = yarn_dimension(rope, dim, rope.beta_slow);
  if (rope.whole_dimensions) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1.0 - ramp);
}

double llama3_frequency(const RopeSpec& rope, double frequency) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// Returns the values with those outside the best groups at minus infinity, and by how much each
// position's choice of groups is clear.
std::pair<at::Tensor, at::Tensor> in_best_groups(const at::Tensor& values, const MoeSpec& moe) {
  const at::Tensor grouped = values.reshape({values.size(0), moe.groups, -1});
  const at::Tensor sums = std::get<0>(at::topk(grouped, 2, 2)).sum(2);
  const at::Tensor ranked = std::get<0>(at::sort(sums, 1, /*descending=*/true));
  const at::Tensor last = ranked.narrow(1, moe.kept_groups - 1, 1);
  const at::Tensor kept = grouped.masked_fill((sums < last).unsqueeze(2), -HUGE_VAL);
  return {kept.flatten(1), (last - ranked.narrow(1, moe.kept_groups, 1)).squeeze(1)};
}

}  // namespace

std::vector<double> plain_frequencies(const RopeSpec& rope, int64_t head_dim, int64_t positions) {
  const int64_t dim = rope.rotary_dim(head_dim);
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < dim / 2; ++pair) {
    const double exponent = static_cast<double>(2 * pair) / static_cast<double>(dim);
    const bool turns =
        2.0 * static_cast<double>(pair + 1) <= static_cast<double>(dim) * rope.turning;
    const double frequency = turns ? std::pow(rope.theta, -exponent) : 0.0;
    switch (rope.scaling) {
      case RopeSpec::Scaling::kNone:
        frequencies.push_back(frequency);
        break;
      case RopeSpec::Scaling::kLinear:
        frequencies.push_back(frequency / rope.factor);
        break;
      case RopeSpec::Scaling::kLlama3:
        frequencies.push_back(llama3_frequency(rope, frequency));
        break;
      case RopeSpec::Scaling::kYarn:
        frequencies.push_back(yarn_frequency(rope, dim, pair, frequency));
        break;
      case RopeSpec::Scaling::kLong: {
        const bool is_long = positions > rope.original_max_positions;
        const auto& factors = is_long ? rope.long_factors : rope.short_factors;
        frequencies.push_back(frequency / factors.at(static_cast<size_t>(pair)));
        break;
      }
    }
  }
  return frequencies;
}

PlainDecoder::PlainDecoder(const ArchSpec& arch, const ModelSpec& spec) : arch_(arch) {
  const std::string& first = spec.units.at(0).parameters.at(0).name;
  for (const NameTable::Prefix& prefix : name_table(arch.family).prefixes) {
    prefix_ = prefix;
    if (embedding_parameters(arch, prefix).at(0).spec.name == first) return;
  }
  throw CheckFailure("no prefix of " + arch.family + " gives " + first);
}

std::string PlainDecoder::name_of(Module module, ParameterRole role, int64_t layer) const {
  for (const auto& list :
       {embedding_parameters(arch_, prefix_), block_parameters(arch_, prefix_, layer),
        head_parameters(arch_, prefix_, /*tied=*/false)}) {
    for (const ModuleParameter& parameter : list) {
      if (parameter.module == module && parameter.role == role) return parameter.spec.name;
    }
  }
  return {};
}

at::Tensor PlainDecoder::embed(const at::Tensor& rows, const Weights& weights) const {
  // Families that round the scale to the compute dtype round it to fp32 here, like the units.
  const double scale = arch_.embedding_scale_rounded
                           ? static_cast<double>(static_cast<float>(arch_.embedding_scale))
                           : arch_.embedding_scale;
  at::Tensor x = rows.to(at::kDouble) * scale;
  if (arch_.embedding_norm) x = plain_scaled(x, arch_.norm_eps);
  if (arch_.position == PositionKind::kLearned) {
    const at::Tensor table =
        weights(name_of(Module::kPositions, ParameterRole::kWeight, 0)).to(at::kDouble);
    x = x + table.narrow(0, 0, rows.size(0));
  }
  return x;
}

at::Tensor PlainDecoder::layer_inputs(const at::Tensor& rows, const at::Tensor& x,
                                      const Weights& weights) const {
  const Layer all(*this, kNoLayer, weights);
  const at::Tensor projected =
      all.linear(Module::kInputProjection, x) / std::sqrt(static_cast<double>(arch_.hidden));
  const at::Tensor each = projected.reshape({x.size(0), arch_.layer_count(), arch_.layer_input});
  const auto scale = static_cast<double>(std::sqrt(static_cast<float>(arch_.layer_input)));
  return (all.norm(Module::kInputNorm, each).flatten(1) + rows.to(at::kDouble) * scale) /
         std::numbers::sqrt2;
}

PlainDecoder::BlockOutput PlainDecoder::block(int64_t number, const at::Tensor& x,
                                              const Weights& weights, Shared& text) const {
  const Layer layer(*this, number, weights);
  at::Tensor h = x, first;
  if (layer.spec().has_mixer) {
    first = layer.norm(Module::kAttentionNorm, x);
    const at::Tensor y = layer.norm(Module::kAttentionPostNorm, plain_mixed(layer, first, text));
    h = x + arch_.residual_scale * y;
  }
  if (!layer.spec().has_mlp) return {.x = h, .sure = {}};
  const bool shared = arch_.norm_placement == NormPlacement::kShared;
  const at::Tensor normed = shared ? first : layer.norm(Module::kMlpNorm, h);
  BlockOutput y;
  if (layer.spec().sparse && arch_.moe.beside) {
    const at::Tensor even = h / at::sqrt((h * h).mean(-1, true) + arch_.norm_eps);
    const at::Tensor chooser =
        even * layer.get(Module::kRouterScale) / std::sqrt(static_cast<double>(arch_.hidden));
    y = experts(layer, layer.norm(Module::kExpertsNorm, h), chooser);
    y.x = layer.norm(Module::kMlpInnerNorm, mlp(layer, normed)) +
          layer.norm(Module::kExpertsPostNorm, y.x);
  } else if (layer.spec().sparse) {
    y = experts(layer, normed, normed);
  } else {
    y.x = mlp(layer, normed);
  }
  y.x = h + arch_.residual_scale * layer.norm(Module::kMlpPostNorm, y.x);
  if (arch_.layer_input > 0) {
    const at::Tensor own =
        text.layer_inputs.narrow(1, number * arch_.layer_input, arch_.layer_input);
    const at::Tensor gate = layer.linear(Module::kInputGate, y.x);
    const at::Tensor more =
        layer.linear(Module::kInputOut, plain_activation(gate, arch_.activation) * own);
    y.x = y.x + layer.norm(Module::kInputPostNorm, more);
  }
  const at::Tensor scale = layer.get(Module::kLayerScale);
  if (scale.defined()) y.x = y.x * scale;
  return y;
}

at::Tensor PlainDecoder::mlp(const Layer& layer, const at::Tensor& x) const {
  at::Tensor gate, up;
  if (arch_.fused_gate_up) {
    const at::Tensor both = layer.linear(Module::kGateUp, x);
    gate = both.narrow(1, 0, arch_.intermediate);
    up = both.narrow(1, arch_.intermediate, arch_.intermediate);
  } else {
    if (arch_.gated) gate = layer.linear(Module::kGate, x);
    up = layer.linear(Module::kUp, x);
  }
  const at::Tensor inner = arch_.gated ? plain_activation(gate, arch_.activation) * up
                                       : plain_activation(up, arch_.activation);
  return layer.linear(Module::kDown, inner);
}

// Returns the expert's output for the tokens in x, without the router's weight.
at::Tensor PlainDecoder::expert(const Layer& layer, int64_t number, const at::Tensor& x) const {
  const MoeSpec& moe = arch_.moe;
  const auto linear = [&](Module module, Module of_all, const at::Tensor& in) {
    return plain_product(layer.matrix(module, of_all, number), in);
  };
  if (!arch_.gated) {
    const at::Tensor up = linear(Module::kExpertUp, Module::kExpertsGateUp, x);
    return linear(Module::kExpertDown, Module::kExpertsDown,
                  plain_activation(up, arch_.activation));
  }
  at::Tensor gate, up;
  if (moe.fused) {
    const at::Tensor both = linear(Module::kExpertGate, Module::kExpertsGateUp, x);
    gate = moe.interleaved ? both.slice(1, 0, 2 * moe.width, 2) : both.narrow(1, 0, moe.width);
    up =
        moe.interleaved ? both.slice(1, 1, 2 * moe.width, 2) : both.narrow(1, moe.width, moe.width);
  } else {
    gate = linear(Module::kExpertGate, Module::kExpertsGateUp, x);
    up = linear(Module::kExpertUp, Module::kExpertsGateUp, x);
  }
  if (moe.clamp <= 0.0) {
    return linear(Module::kExpertDown, Module::kExpertsDown,
                  plain_activation(gate, arch_.activation) * up);
  }
  gate = at::clamp_max(gate, moe.clamp);
  up = at::clamp(up, -moe.clamp, moe.clamp);
  const at::Tensor inner = gate * at::sigmoid(moe.gate_gain * gate) * (up + 1.0);
  return linear(Module::kExpertDown, Module::kExpertsDown, inner);
}

// `chooser` is the router's input.
PlainDecoder::BlockOutput PlainDecoder::experts(const Layer& layer, const at::Tensor& x,
                                                const at::Tensor& chooser) const {
  const MoeSpec& moe = arch_.moe;
  const at::Tensor scores = layer.linear(Module::kRouter, chooser);
  const bool sigmoid = moe.scores == RouterScores::kSigmoid;
  const at::Tensor values = sigmoid ? at::sigmoid(scores) : at::softmax(scores, 1);
  at::Tensor ranked = sigmoid ? values : scores, clear;
  const at::Tensor correction = layer.get(Module::kRouterCorrection);
  if (correction.defined()) ranked = ranked + correction;
  if (moe.kept_groups < moe.groups) std::tie(ranked, clear) = in_best_groups(ranked, moe);
  const auto [best, chosen] = at::topk(ranked, moe.top_k, 1);
  at::Tensor weights = moe.scores == RouterScores::kSoftmaxOfChosen ? at::softmax(best, 1)
                                                                    : values.gather(1, chosen);
  if (moe.renormalise) weights = weights / weights.sum(1, true);
  weights = weights * moe.weight_scale;
  const at::Tensor scales = layer.get(Module::kRouterExpertScale);
  if (scales.defined()) weights = weights * scales.take(chosen);
  const at::Tensor inputs = moe.latent > 0 ? layer.linear(Module::kExpertsIn, x) : x;
  BlockOutput out{.x = at::zeros_like(inputs), .sure = {}};
  if (moe.top_k < moe.experts) {
    const at::Tensor next = std::get<0>(at::topk(ranked, moe.top_k + 1, 1)).select(1, moe.top_k);
    const at::Tensor size = std::get<0>(scores.abs().max(1));
    at::Tensor gap = best.select(1, moe.top_k - 1) - next;
    if (clear.defined()) gap = at::minimum(gap, clear);
    out.sure = at::nonzero(gap > kSureChoice * (size + 1.0)).flatten();
  }
  for (int64_t number = 0; number < moe.experts; ++number) {
    const at::Tensor places = at::nonzero(chosen == number);  // [n, 2]: token, choice
    if (places.size(0) == 0) continue;
    const at::Tensor tokens = places.select(1, 0);
    const at::Tensor share = weights.index({tokens, places.select(1, 1)}).unsqueeze(1);
    out.x.index_add_(0, tokens, expert(layer, number, inputs.index_select(0, tokens)) * share);
  }
  if (moe.latent > 0) out.x = layer.linear(Module::kExpertsOut, out.x);
  if (moe.shared_width > 0) {
    const at::Tensor up = layer.linear(Module::kSharedUp, x);
    const at::Tensor inner =
        arch_.gated ? plain_activation(layer.linear(Module::kSharedGate, x), arch_.activation) * up
                    : plain_activation(up, arch_.activation);
    const at::Tensor y = layer.linear(Module::kSharedDown, inner);
    out.x =
        out.x + (moe.shared_switch ? at::sigmoid(layer.linear(Module::kSharedSwitch, x)) * y : y);
  }
  return out;
}

at::Tensor PlainDecoder::final_norm(const at::Tensor& x, const Weights& weights) const {
  const std::string bias = name_of(Module::kFinalNorm, ParameterRole::kBias, 0);
  return plain_norm(x,
                    weights(name_of(Module::kFinalNorm, ParameterRole::kWeight, 0)).to(at::kDouble),
                    bias.empty() ? at::Tensor() : weights(bias).to(at::kDouble),
                    arch_.final_norm_kind(), arch_.norm_eps);
}

at::Tensor PlainDecoder::logits(const at::Tensor& normed, const at::Tensor& rows) const {
  const at::Tensor raw =
      at::matmul(normed, rows.to(at::kDouble).transpose(0, 1)) / arch_.logit_divisor;
  return arch_.logit_cap == 0.0 ? raw : arch_.logit_cap * at::tanh(raw / arch_.logit_cap);
}

}  // namespace longshore
