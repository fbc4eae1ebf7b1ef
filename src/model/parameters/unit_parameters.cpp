#include "model/parameters/unit_parameters.h"

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "model/parameters/adapter.h"

namespace longshore {
namespace {

InitSpec normal_init(double standard_deviation) {
  return {.kind = InitSpec::Kind::kNormal, .standard_deviation = standard_deviation};
}

std::string with_number(std::string name, std::string_view place, int64_t number) {
  const size_t at = name.find(place);
  if (at != std::string::npos) name.replace(at, place.size(), std::to_string(number));
  return name;
}

}  // namespace

std::string parameter_name(const ArchSpec& arch, bool fused, NameTable::Prefix prefix,
                           Module module, bool bias, int64_t layer, int64_t expert) {
  const NameTable& names = name_table(arch.family);
  std::string name(names.modules[static_cast<size_t>(module)]);
  if (module == Module::kRouter && fused && !names.fused_router.empty()) {
    name = names.fused_router;
  }
  LONGSHORE_CHECK(!name.empty()) << arch.family << " has no part " << static_cast<int>(module);
  name = with_number(with_number(std::move(name), "{i}", layer), "{e}", expert);
  name.insert(0, module == Module::kHead ? prefix.head : prefix.body);
  const bool bare = module == Module::kSinks || module == Module::kExpertsGateUp ||
                    module == Module::kExpertsDown || module == Module::kDeltaRate ||
                    module == Module::kDeltaStep || module == Module::kRouterCorrection ||
                    module == Module::kLayerScale || module == Module::kRouterScale ||
                    module == Module::kRouterExpertScale || module == Module::kMambaRate ||
                    module == Module::kMambaStep || module == Module::kMambaSkip;
  if (bare) return bias ? name + "_bias" : name;
  return name + (bias ? ".bias" : ".weight");
}

namespace {

// Makes the parameters of one unit.
class UnitBuilder {
 public:
  UnitBuilder(const ArchSpec& arch, NameTable::Prefix prefix, int64_t layer)
      : arch_(arch), prefix_(prefix), layer_(layer) {}

  void matrix(Module module, int64_t out, int64_t in, bool bias, double scale = 1.0) {
    std::vector<int64_t> shape{out, in};
    if (arch_.transposed_weights) std::swap(shape[0], shape[1]);
    add(module, false, std::move(shape), normal_init(arch_.initializer_range * scale));
    if (arch_.adapter.adapts(layer_, module)) {
      parameters_.back().adapted = {.module = adapter_module(module),
                                    .scaling = arch_.adapter.scaling_of(module),
                                    .transposed = arch_.transposed_weights};
    }
    if (bias) add(module, true, {out}, {.kind = InitSpec::Kind::kZeros});
    if (arch_.adapter.adapts(layer_, module)) add_adapter(module, out, in);
  }

  void router(int64_t experts, int64_t in) {
    const size_t place = parameters_.size();
    matrix(Module::kRouter, experts, in, false);
    parameters_[place].spec.routes = true;
  }

  // Adds a table of tokens or positions; the head's is a matrix whose rows are outputs.
  void table(Module module, int64_t rows) {
    const bool lookup = module != Module::kHead;
    add(module, false, {rows, arch_.hidden}, normal_init(arch_.initializer_range));
    parameters_.back().spec.looked_up = lookup;
    if (!arch_.adapter.adapts(layer_, module)) return;
    parameters_.back().adapted = {.module = adapter_module(module),
                                  .scaling = arch_.adapter.scaling,
                                  .transposed = lookup,
                                  .lookup = lookup};
    if (lookup) {
      add_lookup_adapter(module, rows);
    } else {
      add_adapter(module, rows, arch_.hidden);
    }
  }

  // Adds an expert's matrix, always [out, in], even if dense matrices are transposed.
  void expert_matrix(Module module, int64_t expert, int64_t out, int64_t in, double scale = 1.0) {
    add(module, false, {out, in}, normal_init(arch_.initializer_range * scale), expert);
    const Module of_all =
        module == Module::kExpertDown ? Module::kExpertsDown : Module::kExpertsGateUp;
    if (!arch_.adapter.adapts(layer_, of_all)) return;
    parameters_.back().adapted = {
        .module = adapter_module(of_all),
        .scaling = arch_.adapter.scaling_of(of_all),
        .expert = expert,
        // Without gates up is all of the first matrix.
        .first_output = module == Module::kExpertUp && arch_.gated ? out : 0};
  }

  // Adds the matrices of all experts, in the layout of the family.
  void expert_matrices(Module module, int64_t out, int64_t in, double scale = 1.0) {
    const MoeSpec& moe = arch_.moe;
    std::vector<int64_t> shape{moe.experts, out, in};
    if (moe.transposed) std::swap(shape[1], shape[2]);
    add(module, false, std::move(shape), normal_init(arch_.initializer_range * scale));
    parameters_.back().spec.stacked = true;
    if (arch_.adapter.adapts(layer_, module)) {
      parameters_.back().adapted = {.module = adapter_module(module),
                                    .scaling = arch_.adapter.scaling_of(module),
                                    .transposed = moe.transposed};
    }
    if (!moe.expert_bias) return;
    add(module, true, {moe.experts, out}, {.kind = InitSpec::Kind::kZeros});
    parameters_.back().spec.stacked = true;
  }

  // Adds the adapter of all experts' matrices if they have one.
  void expert_adapter(Module module, int64_t out, int64_t in) {
    if (arch_.adapter.adapts(layer_, module)) add_adapter(module, out, in, arch_.moe.experts);
  }

  // Adds a vector that is initialised like a matrix.
  void vector(Module module, bool bias, int64_t width) {
    add(module, bias, {width}, normal_init(arch_.initializer_range));
  }

  void filled(Module module, std::vector<int64_t> shape, InitSpec init) {
    add(module, false, std::move(shape), init);
  }

  // Adds a bias that begins at zero.
  void zeros(Module module, int64_t width) {
    add(module, true, {width}, {.kind = InitSpec::Kind::kZeros});
  }

  // Adds values that the files hold and no run trains. `stays_fp32`: in bf16 runs, too, as in
  // transformers.
  void buffer(Module module, int64_t width, InitSpec::Kind init, bool stays_fp32) {
    add(module, false, {width}, {.kind = init});
    parameters_.back().spec.frozen = true;
    parameters_.back().spec.stays_fp32 = stays_fp32;
  }

  void norm(Module module, int64_t width, NormKind kind) {
    const bool offset = kind == NormKind::kRmsOffset;
    add(module, false, {width}, {.kind = offset ? InitSpec::Kind::kZeros : InitSpec::Kind::kOnes});
    if (kind == NormKind::kLayer && arch_.norm_bias) {
      add(module, true, {width}, {.kind = InitSpec::Kind::kZeros});
    }
  }

  std::vector<ModuleParameter> take() { return std::move(parameters_); }

 private:
  void add(Module module, bool bias, std::vector<int64_t> shape, InitSpec init,
           int64_t expert = -1) {
    ParamSpec spec{
        .name = parameter_name(arch_, arch_.moe.fused, prefix_, module, bias, layer_, expert),
        .shape = std::move(shape),
        .init = init};
    parameters_.push_back({.module = module,
                           .role = bias ? ParameterRole::kBias : ParameterRole::kWeight,
                           .spec = std::move(spec),
                           .expert = expert});
  }

  // Returns the name of PEFT's module, which is one in the names of transformers: there all experts
  // of a layer are one module, and the adapter of gate and up is inside of that of down.
  std::string adapter_module(Module module) const {
    const std::string name =
        module_of(parameter_name(arch_, /*fused=*/true, prefix_, module, false, layer_, -1));
    const std::string experts = name.substr(0, name.rfind('.'));
    if (module == Module::kExpertsGateUp) return experts + ".base_layer";
    return module == Module::kExpertsDown ? experts : name;
  }

  // Adds A and B as PEFT begins them: A is uniform with the bound of torch's kaiming_uniform_(a =
  // sqrt(5)), which is 1 / sqrt(in), and B is zero. A magnitude begins as a norm of the weights
  // (AdaptedMatrix::norms), which no InitSpec says.
  void add_adapter(Module module, int64_t out, int64_t in, int64_t experts = 0) {
    const auto [a, b, magnitude] = adapter_names(adapter_module(module));
    const double bound = 1.0 / std::sqrt(static_cast<double>(in));
    const int64_t rank = arch_.adapter.rank_of(module);
    const auto push = [&](ParameterRole role, std::string name, std::vector<int64_t> shape,
                          InitSpec init) {
      if (experts > 0) shape.insert(shape.begin(), experts);
      parameters_.push_back({.module = module,
                             .role = role,
                             .spec = {.name = std::move(name),
                                      .shape = std::move(shape),
                                      .stacked = experts > 0,
                                      .adapter = true,
                                      .init = init}});
    };
    push(ParameterRole::kLoraA, a, {rank, in}, {.kind = InitSpec::Kind::kUniform, .bound = bound});
    parameters_.back().spec.dropout = arch_.adapter.dropout;
    push(ParameterRole::kLoraB, b, {out, rank}, {.kind = InitSpec::Kind::kZeros});
    if (!arch_.adapter.magnitudes) return;
    push(ParameterRole::kLoraMagnitude, magnitude, {out}, {.kind = InitSpec::Kind::kOnes});
  }

  // Adds A, [rows, rank], and B, [hidden, rank], of a lookup, as PEFT begins them: A is zero and B
  // normal. PEFT's A is the transpose, whose columns belong to tokens. A magnitude belongs to a
  // column of the table.
  void add_lookup_adapter(Module module, int64_t rows) {
    const AdapterNames names = adapter_names(adapter_module(module), /*lookup=*/true);
    const int64_t rank = arch_.adapter.rank;
    const auto push = [&](ParameterRole role, const std::string& name, std::vector<int64_t> shape,
                          InitSpec init) {
      parameters_.push_back(
          {.module = module,
           .role = role,
           .spec = {.name = name, .shape = std::move(shape), .adapter = true, .init = init}});
    };
    push(ParameterRole::kLoraA, names.a, {rows, rank}, {.kind = InitSpec::Kind::kZeros});
    push(ParameterRole::kLoraB, names.b, {arch_.hidden, rank}, normal_init(1.0));
    if (!arch_.adapter.magnitudes) return;
    push(ParameterRole::kLoraMagnitude, names.magnitude, {arch_.hidden},
         {.kind = InitSpec::Kind::kOnes});
  }

  const ArchSpec& arch_;
  NameTable::Prefix prefix_;
  int64_t layer_;
  std::vector<ModuleParameter> parameters_;
};

void add_attention(UnitBuilder& builder, const ArchSpec& family, const LayerSpec& layer) {
  const ArchSpec arch = family.of_layer(layer);
  const int64_t q = arch.query_width(), kv = arch.key_width();
  if (arch.fused_qkv) {
    builder.matrix(Module::kQkv, q + 2 * kv, arch.hidden, arch.qkv_bias);
  } else {
    const bool both = arch.output_gate && !arch.own_gate_matrix;
    builder.matrix(Module::kQuery, both ? 2 * q : q, arch.hidden, arch.qkv_bias);
    if (layer.keys_of < 0) builder.matrix(Module::kKey, kv, arch.hidden, arch.qkv_bias);
    if (layer.keys_of < 0 && !layer.values_are_keys) {
      builder.matrix(Module::kValue, kv, arch.hidden, arch.qkv_bias);
    }
  }
  if (arch.own_gate_matrix) builder.matrix(Module::kAttentionGate, q, arch.hidden, false);
  if (arch.qk_norm == QueryKeyNorm::kHead || arch.qk_norm == QueryKeyNorm::kWidth) {
    const bool head = arch.qk_norm == QueryKeyNorm::kHead;
    builder.norm(Module::kQueryNorm, head ? arch.head_dim : q, arch.norm);
    if (layer.keys_of < 0) {
      builder.norm(Module::kKeyNorm, head ? arch.head_dim : kv, arch.norm);
    }
  }
  if (arch.sinks) builder.vector(Module::kSinks, false, arch.heads);
  builder.matrix(Module::kOutput, arch.hidden, q, arch.output_bias, arch.residual_init_scale);
}

// The rates of decay begin as transformers draws them, between 0.01 and 16.
void add_delta(UnitBuilder& builder, const ArchSpec& arch) {
  const DeltaSpec& delta = arch.delta;
  const int64_t heads = delta.value_heads, values = delta.value_width();
  if (delta.fused) {
    builder.matrix(Module::kDeltaQkvGate, delta.mixed_width() + values, arch.hidden, false);
    builder.matrix(Module::kDeltaBetaDecay, 2 * heads, arch.hidden, false);
  } else {
    builder.matrix(Module::kDeltaQkv, delta.mixed_width(), arch.hidden, false);
    builder.matrix(Module::kDeltaGate, values, arch.hidden, false);
    builder.matrix(Module::kDeltaBeta, heads, arch.hidden, false);
    builder.matrix(Module::kDeltaDecay, heads, arch.hidden, false);
  }
  builder.filled(Module::kDeltaConv, {delta.mixed_width(), 1, delta.taps},
                 normal_init(arch.initializer_range));
  builder.filled(Module::kDeltaRate, {heads},
                 {.kind = InitSpec::Kind::kLogUniform, .bound = 16.0, .least = 0.01});
  builder.filled(Module::kDeltaStep, {heads}, {.kind = InitSpec::Kind::kOnes});
  builder.norm(Module::kDeltaNorm, delta.value_dim, NormKind::kRms);
  builder.matrix(Module::kDeltaOutput, arch.hidden, values, false, arch.residual_init_scale);
}

void add_latent(UnitBuilder& builder, const ArchSpec& arch) {
  const LatentSpec& latent = arch.latent;
  const int64_t queries = arch.heads * latent.key_dim();
  if (latent.query_rank == 0) {
    builder.matrix(Module::kQuery, queries, arch.hidden, false);
  } else {
    builder.matrix(Module::kQueryDown, latent.query_rank, arch.hidden, arch.qkv_bias);
    builder.norm(Module::kQueryLatentNorm, latent.query_rank, NormKind::kRms);
    builder.matrix(Module::kQueryUp, queries, latent.query_rank, false);
  }
  builder.matrix(Module::kLatentDown, latent.rank + latent.rope_dim, arch.hidden, arch.qkv_bias);
  builder.norm(Module::kLatentNorm, latent.rank, NormKind::kRms);
  builder.matrix(Module::kLatentUp, arch.heads * (latent.plain_dim + latent.value_dim), latent.rank,
                 false);
  builder.matrix(Module::kOutput, arch.hidden, arch.heads * latent.value_dim, arch.output_bias,
                 arch.residual_init_scale);
}

bool has_post_norms(const ArchSpec& arch) {
  return arch.norm_placement == NormPlacement::kAfter ||
         arch.norm_placement == NormPlacement::kBoth;
}

void add_convolution(UnitBuilder& builder, const ArchSpec& arch) {
  const ConvolutionSpec& convolution = arch.convolution;
  const InitSpec taps = normal_init(arch.initializer_range);
  builder.matrix(Module::kConvolutionIn, 3 * arch.hidden, arch.hidden, convolution.bias);
  builder.filled(Module::kConvolutionTaps, {arch.hidden, 1, convolution.taps}, taps);
  if (convolution.bias) builder.zeros(Module::kConvolutionTaps, arch.hidden);
  builder.matrix(Module::kConvolutionOut, arch.hidden, arch.hidden, convolution.bias,
                 arch.residual_init_scale);
}

// The rates of decay begin between 1 and 16, and the steps as transformers' class makes them.
void add_mamba(UnitBuilder& builder, const ArchSpec& arch) {
  const MambaSpec& mamba = arch.mamba;
  const InitSpec ones = {.kind = InitSpec::Kind::kOnes};
  builder.matrix(Module::kMambaIn, mamba.inner_width() + mamba.mixed_width() + mamba.heads,
                 arch.hidden, mamba.bias);
  builder.filled(Module::kMambaConv, {mamba.mixed_width(), 1, mamba.taps},
                 normal_init(arch.initializer_range));
  if (mamba.convolution_bias) builder.zeros(Module::kMambaConv, mamba.mixed_width());
  builder.filled(Module::kMambaRate, {mamba.heads},
                 {.kind = InitSpec::Kind::kLogUniform, .bound = 16.0, .least = 1.0});
  builder.filled(Module::kMambaStep, {mamba.heads}, ones);
  builder.filled(Module::kMambaSkip, {mamba.heads}, ones);
  builder.filled(Module::kMambaNorm, {mamba.inner_width()}, ones);
  builder.matrix(Module::kMambaOut, arch.hidden, mamba.inner_width(), mamba.bias,
                 arch.residual_init_scale);
}

void add_mixer(UnitBuilder& builder, const ArchSpec& arch, const LayerSpec& layer) {
  if (arch.norm_placement != NormPlacement::kAfter) {
    builder.norm(Module::kAttentionNorm, arch.hidden, arch.norm);
  }
  if (layer.mixer == MixerKind::kDelta) {
    add_delta(builder, arch);
  } else if (layer.mixer == MixerKind::kLatent) {
    add_latent(builder, arch);
  } else if (layer.mixer == MixerKind::kConvolution) {
    add_convolution(builder, arch);
  } else if (layer.mixer == MixerKind::kMamba) {
    add_mamba(builder, arch);
  } else {
    add_attention(builder, arch, layer);
  }
  if (has_post_norms(arch)) {
    builder.norm(Module::kAttentionPostNorm, arch.hidden, arch.norm);
  }
}

// Adds the expert that serves all tokens.
void add_shared_expert(UnitBuilder& builder, const ArchSpec& arch) {
  const int64_t hidden = arch.hidden, width = arch.moe.shared_width;
  if (arch.gated) builder.matrix(Module::kSharedGate, width, hidden, false);
  builder.matrix(Module::kSharedUp, width, hidden, false);
  builder.matrix(Module::kSharedDown, hidden, width, false, arch.residual_init_scale);
  if (arch.moe.shared_switch) builder.matrix(Module::kSharedSwitch, 1, hidden, false);
}

// Adds the router, the matrix before the experts, the expert for all tokens, the other experts in
// order, and the matrix behind them.
void add_experts(UnitBuilder& builder, const ArchSpec& arch) {
  const MoeSpec& moe = arch.moe;
  const int64_t hidden = arch.hidden, width = moe.width, outer = arch.experts_hidden();
  const int64_t inner = arch.gated ? 2 * width : width;
  if (moe.beside) builder.filled(Module::kRouterScale, {hidden}, {.kind = InitSpec::Kind::kOnes});
  builder.router(moe.experts, hidden);
  if (moe.beside) {
    builder.filled(Module::kRouterExpertScale, {moe.experts}, {.kind = InitSpec::Kind::kOnes});
  }
  if (moe.router_bias) builder.vector(Module::kRouter, true, moe.experts);
  if (moe.correction) {
    builder.buffer(Module::kRouterCorrection, moe.experts, InitSpec::Kind::kZeros,
                   /*stays_fp32=*/true);
  }
  if (moe.latent > 0) builder.matrix(Module::kExpertsIn, outer, hidden, false);
  if (moe.shared_width > 0) add_shared_expert(builder, arch);
  if (moe.fused) {
    builder.expert_matrices(Module::kExpertsGateUp, inner, outer);
    builder.expert_matrices(Module::kExpertsDown, outer, width, arch.residual_init_scale);
  }
  for (int64_t expert = 0; !moe.fused && expert < moe.experts; ++expert) {
    if (arch.gated) builder.expert_matrix(Module::kExpertGate, expert, width, outer);
    builder.expert_matrix(Module::kExpertUp, expert, width, outer);
    builder.expert_matrix(Module::kExpertDown, expert, outer, width, arch.residual_init_scale);
  }
  if (moe.latent > 0) {
    builder.matrix(Module::kExpertsOut, hidden, outer, false, arch.residual_init_scale);
  }
  builder.expert_adapter(Module::kExpertsGateUp, inner, outer);
  builder.expert_adapter(Module::kExpertsDown, outer, width);
}

void add_dense(UnitBuilder& builder, const ArchSpec& arch) {
  if (arch.fused_gate_up) {
    builder.matrix(Module::kGateUp, 2 * arch.intermediate, arch.hidden, arch.mlp_bias);
  } else {
    if (arch.gated) builder.matrix(Module::kGate, arch.intermediate, arch.hidden, arch.mlp_bias);
    builder.matrix(Module::kUp, arch.intermediate, arch.hidden, arch.mlp_bias);
  }
  builder.matrix(Module::kDown, arch.hidden, arch.intermediate, arch.mlp_bias,
                 arch.residual_init_scale);
}

void add_mlp(UnitBuilder& builder, const ArchSpec& arch, bool sparse) {
  if (arch.norm_placement == NormPlacement::kBefore ||
      arch.norm_placement == NormPlacement::kBoth) {
    builder.norm(Module::kMlpNorm, arch.hidden, arch.norm);
  }
  const bool beside = sparse && arch.moe.beside;
  if (!sparse || beside) add_dense(builder, arch);
  if (beside) {
    for (const Module module :
         {Module::kMlpInnerNorm, Module::kExpertsNorm, Module::kExpertsPostNorm}) {
      builder.norm(module, arch.hidden, arch.norm);
    }
  }
  if (sparse) add_experts(builder, arch);
  if (has_post_norms(arch)) {
    builder.norm(Module::kMlpPostNorm, arch.hidden, arch.norm);
  }
  if (arch.layer_input > 0) {
    builder.matrix(Module::kInputGate, arch.layer_input, arch.hidden, false);
    builder.matrix(Module::kInputOut, arch.hidden, arch.layer_input, false,
                   arch.residual_init_scale);
    builder.norm(Module::kInputPostNorm, arch.hidden, arch.norm);
  }
  if (arch.layer_scale)
    builder.buffer(Module::kLayerScale, 1, InitSpec::Kind::kOnes, /*stays_fp32=*/false);
}

}  // namespace

std::vector<ModuleParameter> embedding_parameters(const ArchSpec& arch, NameTable::Prefix prefix) {
  UnitBuilder builder(arch, prefix, kNoLayer);
  builder.table(Module::kTokens, arch.vocabulary);
  if (arch.position == PositionKind::kLearned) {
    builder.table(Module::kPositions, arch.max_positions);
  }
  return builder.take();
}

std::vector<ModuleParameter> input_table_parameters(const ArchSpec& arch,
                                                    NameTable::Prefix prefix) {
  UnitBuilder builder(arch, prefix, kNoLayer);
  if (arch.layer_input == 0) return {};
  builder.filled(Module::kInputTable, {arch.layer_input_rows, arch.layer_inputs_width()},
                 normal_init(arch.initializer_range));
  std::vector<ModuleParameter> parameters = builder.take();
  parameters.back().spec.looked_up = true;
  return parameters;
}

std::vector<ModuleParameter> input_parameters(const ArchSpec& arch, NameTable::Prefix prefix) {
  UnitBuilder builder(arch, prefix, kNoLayer);
  if (arch.layer_input == 0) return {};
  builder.matrix(Module::kInputProjection, arch.layer_inputs_width(), arch.hidden, false);
  builder.norm(Module::kInputNorm, arch.layer_input, arch.norm);
  return builder.take();
}

std::vector<ModuleParameter> block_parameters(const ArchSpec& arch, NameTable::Prefix prefix,
                                              int64_t layer, BlockPart part) {
  UnitBuilder builder(arch, prefix, layer);
  const LayerSpec& spec = arch.layers.at(static_cast<size_t>(layer));
  if (spec.has_mixer && part != BlockPart::kMlp) add_mixer(builder, arch, spec);
  if (spec.has_mlp && part != BlockPart::kAttention)
    add_mlp(builder, arch.of_layer(spec), spec.sparse);
  return builder.take();
}

std::vector<ModuleParameter> head_parameters(const ArchSpec& arch, NameTable::Prefix prefix,
                                             bool tied) {
  UnitBuilder builder(arch, prefix, kNoLayer);
  builder.norm(Module::kFinalNorm, arch.hidden, arch.final_norm_kind());
  if (!tied) builder.table(Module::kHead, arch.vocabulary);
  return builder.take();
}

}  // namespace longshore
