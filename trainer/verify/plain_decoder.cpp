#include "trainer/verify/plain_decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>

#include "base/errors.h"

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

// Returns x divided by its root mean square.
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

at::Tensor activated(const at::Tensor& x, Activation activation) {
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

// Returns a mask [T, T] that is true if the row's query must not attend to the column's key.
at::Tensor hidden_keys(int64_t positions, int64_t window) {
  const at::Tensor row = at::arange(positions).unsqueeze(1), column = at::arange(positions);
  at::Tensor hidden = column > row;
  if (window > 0) hidden = hidden.logical_or(column <= row - window);
  return hidden;
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

// Returns the sum over the taps [channels, 1, n] of x [T, channels] at the n latest positions.
at::Tensor convolved(const at::Tensor& x, const at::Tensor& taps) {
  const int64_t count = taps.size(2);
  const at::Tensor before = at::cat({at::zeros({count - 1, x.size(1)}, x.options()), x}, 0);
  at::Tensor sum = at::zeros_like(x);
  for (int64_t tap = 0; tap < count; ++tap) {
    sum = sum + before.narrow(0, tap, x.size(0)) * taps.squeeze(1).select(1, tap);
  }
  return sum;
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

class PlainDecoder::Layer {
 public:
  Layer(const PlainDecoder& decoder, int64_t number, const Weights& weights)
      : decoder_(decoder), number_(number), weights_(weights) {
    for (const ModuleParameter& parameter :
         block_parameters(decoder.arch_, decoder.prefix_, number)) {
      names_[{parameter.module, parameter.role, parameter.expert}] = parameter.spec.name;
    }
  }

  const LayerSpec& spec() const { return decoder_.arch_.layers.at(static_cast<size_t>(number_)); }

  // Returns an fp64 tensor; undefined if the layer has no such parameter.
  at::Tensor get(Module module, ParameterRole role = ParameterRole::kWeight) const {
    const at::Tensor values = stored(module, role, -1);
    return values.defined() ? values.to(at::kDouble) : values;
  }

  // Returns one expert's matrix, from its own parameter or from the parameter of all experts. Its
  // shape is [in, out] if the family stores it so, otherwise [out, in].
  at::Tensor get(Module module, Module of_all, ParameterRole role, int64_t expert) const {
    at::Tensor values = stored(module, role, expert);
    if (values.defined()) return values.to(at::kDouble);
    values = stored(of_all, role, -1);
    return values.defined() ? values.select(0, expert).to(at::kDouble) : values;
  }

  at::Tensor linear(Module module, const at::Tensor& x) const {
    const at::Tensor weight = get(module), bias = get(module, ParameterRole::kBias);
    at::Tensor y =
        at::matmul(x, decoder_.arch_.transposed_weights ? weight : weight.transpose(0, 1));
    const at::Tensor a = get(module, ParameterRole::kLoraA);
    if (a.defined()) {
      const at::Tensor b = get(module, ParameterRole::kLoraB);
      const double scaling = decoder_.arch_.adapter.scaling_of(module);
      y = y + scaling * at::matmul(at::matmul(x, a.transpose(0, 1)), b.transpose(0, 1));
      const at::Tensor magnitude = get(module, ParameterRole::kLoraMagnitude);
      if (magnitude.defined()) {
        const at::Tensor product = at::matmul(b, a);
        const at::Tensor sum =
            (decoder_.arch_.transposed_weights ? weight.transpose(0, 1) : weight) +
            scaling * product;
        // An output of zero weights has the magnitude 0 and stays zero.
        const double least = std::numeric_limits<float>::min();
        y = y * (magnitude / sum.square().sum(1).sqrt().clamp_min(least));
      }
    }
    return bias.defined() ? y + bias : y;
  }

  // Returns x unchanged if the layer has no such norm.
  at::Tensor norm(Module module, const at::Tensor& x) const {
    const at::Tensor weight = get(module);
    if (!weight.defined()) return x;
    const ArchSpec& arch = decoder_.arch_;
    const bool post = module == Module::kAttentionPostNorm || module == Module::kMlpPostNorm;
    return plain_norm(x, weight, get(module, ParameterRole::kBias), arch.norm,
                      post && arch.post_norm_eps ? *arch.post_norm_eps : arch.norm_eps);
  }

 private:
  const PlainDecoder& decoder_;
  int64_t number_;
  const Weights& weights_;
  at::Tensor stored(Module module, ParameterRole role, int64_t expert) const {
    const auto name = names_.find({module, role, expert});
    return name == names_.end() ? at::Tensor() : weights_(name->second);
  }

  std::map<std::tuple<Module, ParameterRole, int64_t>, std::string> names_;
};

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

at::Tensor PlainDecoder::mixed(const Layer& layer, const at::Tensor& x) const {
  switch (layer.spec().mixer) {
    case MixerKind::kAttention:
      return attention(layer, x);
    case MixerKind::kDelta:
      return delta(layer, x);
    case MixerKind::kLatent:
      return latent(layer, x);
    case MixerKind::kConvolution:
      return convolution(layer, x);
    case MixerKind::kMamba:
      return mamba(layer, x);
  }
  throw CheckFailure("a mixer without a formula");
}

PlainDecoder::BlockOutput PlainDecoder::block(int64_t number, const at::Tensor& x,
                                              const Weights& weights) const {
  const Layer layer(*this, number, weights);
  at::Tensor h = x, first;
  if (layer.spec().has_mixer) {
    first = layer.norm(Module::kAttentionNorm, x);
    const at::Tensor y = layer.norm(Module::kAttentionPostNorm, mixed(layer, first));
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
  const at::Tensor scale = layer.get(Module::kLayerScale);
  if (scale.defined()) y.x = y.x * scale;
  return y;
}

// x is [heads, T, head_dim].
at::Tensor PlainDecoder::rotate(const at::Tensor& x, const RopeSpec& rope, int64_t head_dim) const {
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

at::Tensor PlainDecoder::attention(const Layer& layer, const at::Tensor& x) const {
  const ArchSpec arch = arch_.of_layer(layer.spec());
  const int64_t positions = x.size(0);
  std::vector<at::Tensor> qkv;
  if (arch.fused_qkv) {
    qkv = layer.linear(Module::kQkv, x)
              .split_with_sizes({arch.query_width(), arch.key_width(), arch.key_width()}, 1);
  } else {
    const Module values = layer.spec().values_are_keys ? Module::kKey : Module::kValue;
    for (const Module module : {Module::kQuery, Module::kKey, values}) {
      qkv.push_back(layer.linear(module, x));
    }
  }
  at::Tensor gate;
  if (arch.own_gate_matrix) {
    gate = layer.linear(Module::kAttentionGate, x);
  } else if (arch.output_gate) {
    const at::Tensor both = qkv[0].reshape({positions, arch.heads, 2 * arch.head_dim});
    gate = both.narrow(2, arch.head_dim, arch.head_dim).flatten(1);
    qkv[0] = both.narrow(2, 0, arch.head_dim).flatten(1);
  }
  const auto clipped = [&](const at::Tensor& y) {
    return arch.qkv_clip == 0.0 ? y : y.clamp(-arch.qkv_clip, arch.qkv_clip);
  };
  const auto heads = [&](const at::Tensor& y, int64_t count) {
    return y.reshape({positions, count, arch.head_dim}).transpose(0, 1);
  };
  const auto placed = [&](const at::Tensor& y, Module head_norm, int64_t count) {
    const bool wide = arch.qk_norm == QueryKeyNorm::kWidth;
    LONGSHORE_CHECK(!wide || !arch.qk_norm_after_rope) << "a norm over all heads behind the rope";
    at::Tensor z = heads(wide ? layer.norm(head_norm, y) : y, count);
    const bool each = arch.qk_norm == QueryKeyNorm::kHead;
    if (each && !arch.qk_norm_after_rope) z = layer.norm(head_norm, z);
    if (arch.qk_norm == QueryKeyNorm::kHeadPlain) z = plain_scaled(z, arch.norm_eps);
    z = clipped(z);
    const bool turns = arch.position == PositionKind::kRope && layer.spec().rotates;
    if (turns) z = rotate(z, layer.spec().local_rope ? arch.local_rope : arch.rope, arch.head_dim);
    return each && arch.qk_norm_after_rope ? layer.norm(head_norm, z) : z;
  };
  at::Tensor q = placed(qkv[0], Module::kQueryNorm, arch.heads);
  const int64_t shared = arch.heads / arch.kv_heads;
  const at::Tensor k = placed(qkv[1], Module::kKeyNorm, arch.kv_heads).repeat_interleave(shared, 0);
  at::Tensor v = heads(clipped(qkv[2]), arch.kv_heads).repeat_interleave(shared, 0);
  if (arch.value_norm) v = v / at::sqrt((v * v).mean(-1, true) + arch.norm_eps);
  if (arch.query_growth_beta != 0.0) {
    const at::Tensor turns = at::floor(at::arange(positions, at::kDouble) /
                                       static_cast<double>(arch.query_growth_positions));
    q = q * (1.0 + arch.query_growth_beta * at::log(1.0 + turns)).unsqueeze(1);
  }
  at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * layer.spec().attention_scale;
  if (arch.score_cap != 0.0) scores = arch.score_cap * at::tanh(scores / arch.score_cap);
  scores = scores.masked_fill(hidden_keys(positions, layer.spec().window), -HUGE_VAL);
  if (arch.sinks) {
    const at::Tensor sinks = layer.get(Module::kSinks).reshape({arch.heads, 1, 1});
    scores = at::cat({scores, sinks.expand({-1, positions, 1})}, -1);
  }
  const at::Tensor shares = at::softmax(scores, -1).narrow(2, 0, positions);
  at::Tensor mixed = at::matmul(shares, v).transpose(0, 1).reshape({positions, arch.query_width()});
  if (gate.defined()) mixed = mixed * at::sigmoid(gate);
  return layer.linear(Module::kOutput, mixed);
}

// Returns queries with keys and values, gate, beta and decay.
std::array<at::Tensor, 4> PlainDecoder::delta_products(const Layer& layer,
                                                       const at::Tensor& x) const {
  const DeltaSpec& spec = arch_.delta;
  if (!spec.fused) {
    return {layer.linear(Module::kDeltaQkv, x), layer.linear(Module::kDeltaGate, x),
            layer.linear(Module::kDeltaBeta, x), layer.linear(Module::kDeltaDecay, x)};
  }
  const int64_t times = spec.value_heads / spec.key_heads, width = times * spec.value_dim;
  const auto rows = layer.linear(Module::kDeltaQkvGate, x).chunk(spec.key_heads, 1);
  const auto pairs = layer.linear(Module::kDeltaBetaDecay, x).chunk(spec.key_heads, 1);
  std::vector<at::Tensor> queries, keys, values, gates, betas, decays;
  for (size_t head = 0; head < rows.size(); ++head) {
    queries.push_back(rows[head].narrow(1, 0, spec.key_dim));
    keys.push_back(rows[head].narrow(1, spec.key_dim, spec.key_dim));
    values.push_back(rows[head].narrow(1, 2 * spec.key_dim, width));
    gates.push_back(rows[head].narrow(1, 2 * spec.key_dim + width, width));
    betas.push_back(pairs[head].narrow(1, 0, times));
    decays.push_back(pairs[head].narrow(1, times, times));
  }
  const at::Tensor mixed = at::cat({at::cat(queries, 1), at::cat(keys, 1), at::cat(values, 1)}, 1);
  return {mixed, at::cat(gates, 1), at::cat(betas, 1), at::cat(decays, 1)};
}

// Computes gated DeltaNet token by token, as its recurrence says.
at::Tensor PlainDecoder::delta(const Layer& layer, const at::Tensor& x) const {
  const DeltaSpec& spec = arch_.delta;
  const int64_t positions = x.size(0), times = spec.value_heads / spec.key_heads;
  const auto products = delta_products(layer, x);
  const at::Tensor mixed =
      activated(convolved(products[0], layer.get(Module::kDeltaConv)), Activation::kSilu);
  const auto heads = [&](int64_t first, int64_t count, int64_t width) {
    return mixed.narrow(1, first, count * width).reshape({positions, count, width});
  };
  const auto keys = [&](int64_t first) {
    const at::Tensor y = heads(first, spec.key_heads, spec.key_dim);
    return (y / at::sqrt((y * y).sum(-1, true) + 1e-6)).repeat_interleave(times, 1);
  };
  const at::Tensor q = keys(0) / std::sqrt(static_cast<double>(spec.key_dim));
  const at::Tensor k = keys(spec.key_width());
  const at::Tensor v = heads(2 * spec.key_width(), spec.value_heads, spec.value_dim);
  const at::Tensor beta = at::sigmoid(products[2]).unsqueeze(-1);
  const at::Tensor step = products[3] + layer.get(Module::kDeltaStep);
  const at::Tensor rate = layer.get(Module::kDeltaRate).exp();
  const at::Tensor left = at::exp(-rate * at::log1p(at::exp(step))).unsqueeze(-1).unsqueeze(-1);
  at::Tensor state = at::zeros({spec.value_heads, spec.key_dim, spec.value_dim}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < positions; ++t) {
    state = left[t] * state;
    const at::Tensor known = (k[t].unsqueeze(2) * state).sum(1);
    state = state + k[t].unsqueeze(2) * (beta[t] * (v[t] - known)).unsqueeze(1);
    rows.push_back((q[t].unsqueeze(2) * state).sum(1));
  }
  at::Tensor y = at::stack(rows);
  y = y / at::sqrt((y * y).mean(-1, true) + arch_.norm_eps) * layer.get(Module::kDeltaNorm);
  const at::Tensor gate = activated(products[1], Activation::kSilu);
  return layer.linear(Module::kDeltaOutput, y.flatten(1) * gate);
}

at::Tensor PlainDecoder::latent(const Layer& layer, const at::Tensor& x) const {
  const LatentSpec& spec = arch_.latent;
  const int64_t positions = x.size(0);
  const auto normed = [&](const at::Tensor& y, Module module) {
    return y / at::sqrt((y * y).mean(-1, true) + 1e-6) * layer.get(module);
  };
  const auto heads = [&](const at::Tensor& y) {
    return y.reshape({positions, arch_.heads, -1}).transpose(0, 1);
  };
  const at::Tensor queries =
      heads(spec.query_rank == 0
                ? layer.linear(Module::kQuery, x)
                : layer.linear(Module::kQueryUp, normed(layer.linear(Module::kQueryDown, x),
                                                        Module::kQueryLatentNorm)));
  const at::Tensor down = layer.linear(Module::kLatentDown, x);
  const at::Tensor up = heads(
      layer.linear(Module::kLatentUp, normed(down.narrow(1, 0, spec.rank), Module::kLatentNorm)));
  const auto turned = [&](const at::Tensor& y) { return rotate(y, arch_.rope, spec.rope_dim); };
  const at::Tensor plain = at::matmul(queries.narrow(2, 0, spec.plain_dim),
                                      up.narrow(2, 0, spec.plain_dim).transpose(1, 2));
  const at::Tensor placed =
      at::matmul(turned(queries.narrow(2, spec.plain_dim, spec.rope_dim)),
                 turned(down.narrow(1, spec.rank, spec.rope_dim).unsqueeze(0)).transpose(1, 2));
  const at::Tensor scores = ((plain + placed) * layer.spec().attention_scale)
                                .masked_fill(hidden_keys(positions, 0), -HUGE_VAL);
  const at::Tensor mixed =
      at::matmul(at::softmax(scores, -1), up.narrow(2, spec.plain_dim, spec.value_dim));
  return layer.linear(Module::kOutput, mixed.transpose(0, 1).flatten(1));
}

at::Tensor PlainDecoder::convolution(const Layer& layer, const at::Tensor& x) const {
  const at::Tensor parts = layer.linear(Module::kConvolutionIn, x);
  const auto part = [&](int64_t number) {
    return parts.narrow(1, number * arch_.hidden, arch_.hidden);
  };
  at::Tensor y = convolved(part(0) * part(2), layer.get(Module::kConvolutionTaps));
  const at::Tensor bias = layer.get(Module::kConvolutionTaps, ParameterRole::kBias);
  if (bias.defined()) y = y + bias;
  return layer.linear(Module::kConvolutionOut, part(1) * y);
}

// Computes Mamba-2 token by token, as its recurrence says.
at::Tensor PlainDecoder::mamba(const Layer& layer, const at::Tensor& x) const {
  const MambaSpec& spec = arch_.mamba;
  const int64_t positions = x.size(0), inner = spec.inner_width(), keyed = spec.groups * spec.state;
  const auto parts = layer.linear(Module::kMambaIn, x)
                         .split_with_sizes({inner, spec.mixed_width(), spec.heads}, 1);
  at::Tensor in = convolved(parts[1], layer.get(Module::kMambaConv));
  const at::Tensor bias = layer.get(Module::kMambaConv, ParameterRole::kBias);
  in = activated(bias.defined() ? in + bias : in, Activation::kSilu);
  const auto keys = [&](int64_t first) {
    return in.narrow(1, first, keyed)
        .reshape({positions, spec.groups, spec.state})
        .repeat_interleave(spec.heads / spec.groups, 1);
  };
  const at::Tensor values = in.narrow(1, 0, inner).reshape({positions, spec.heads, spec.head_dim});
  const at::Tensor b = keys(inner), c = keys(inner + keyed);
  const at::Tensor step = at::log1p(at::exp(parts[2] + layer.get(Module::kMambaStep)))
                              .clamp_min(spec.least_step)
                              .unsqueeze(-1)
                              .unsqueeze(-1);
  const at::Tensor rate = layer.get(Module::kMambaRate).exp().unsqueeze(-1).unsqueeze(-1);
  const at::Tensor skip = layer.get(Module::kMambaSkip).unsqueeze(-1);
  at::Tensor state = at::zeros({spec.heads, spec.head_dim, spec.state}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < positions; ++t) {
    state = at::exp(-rate * step[t]) * state + step[t] * values[t].unsqueeze(2) * b[t].unsqueeze(1);
    rows.push_back((state * c[t].unsqueeze(1)).sum(2) + skip * values[t]);
  }
  const at::Tensor gated = at::stack(rows).flatten(1) * activated(parts[0], Activation::kSilu);
  const at::Tensor groups = gated.reshape({positions, spec.groups, -1});
  const at::Tensor y =
      (groups / at::sqrt((groups * groups).mean(-1, true) + arch_.norm_eps)).flatten(1);
  return layer.linear(Module::kMambaOut, y * layer.get(Module::kMambaNorm));
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
  const at::Tensor inner =
      arch_.gated ? activated(gate, arch_.activation) * up : activated(up, arch_.activation);
  return layer.linear(Module::kDown, inner);
}

// Returns the expert's output for the tokens in x, without the router's weight.
at::Tensor PlainDecoder::expert(const Layer& layer, int64_t number, const at::Tensor& x) const {
  const MoeSpec& moe = arch_.moe;
  const auto linear = [&](Module module, Module of_all, const at::Tensor& in) {
    const at::Tensor weight = layer.get(module, of_all, ParameterRole::kWeight, number);
    const at::Tensor bias = layer.get(module, of_all, ParameterRole::kBias, number);
    at::Tensor y = at::matmul(in, moe.transposed ? weight : weight.transpose(0, 1));
    const at::Tensor a = layer.get(of_all, ParameterRole::kLoraA);
    if (a.defined()) {
      const at::Tensor inner = at::matmul(in, a.select(0, number).transpose(0, 1));
      at::Tensor b = layer.get(of_all, ParameterRole::kLoraB).select(0, number);
      if (b.size(0) > y.size(1))
        b = b.narrow(0, module == Module::kExpertUp ? moe.width : 0, moe.width);
      y = y + arch_.adapter.scaling_of(of_all) * at::matmul(inner, b.transpose(0, 1));
    }
    return bias.defined() ? y + bias : y;
  };
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
                  activated(gate, arch_.activation) * up);
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
  BlockOutput out{.x = at::zeros_like(x), .sure = {}};
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
    out.x.index_add_(0, tokens, expert(layer, number, x.index_select(0, tokens)) * share);
  }
  if (moe.shared_width > 0) {
    const at::Tensor gate = layer.linear(Module::kSharedGate, x);
    const at::Tensor inner = activated(gate, arch_.activation) * layer.linear(Module::kSharedUp, x);
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
