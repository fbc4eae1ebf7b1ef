#include "model/parameters/unit_parameters.h"

#include <utility>

#include "base/errors.h"
#include "model/parameters/mixer_parameters.h"
#include "model/parameters/unit_builder.h"

namespace longshore {
namespace {

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
  const bool bare = is_bare_in_mixer(module) || module == Module::kExpertsGateUp ||
                    module == Module::kExpertsDown || module == Module::kRouterCorrection ||
                    module == Module::kLayerScale || module == Module::kRouterScale ||
                    module == Module::kRouterExpertScale;
  if (bare) return bias ? name + "_bias" : name;
  return name + (bias ? ".bias" : ".weight");
}

namespace {

bool has_post_norms(const ArchSpec& arch) {
  return arch.norm_placement == NormPlacement::kAfter ||
         arch.norm_placement == NormPlacement::kBoth;
}

void add_mixer(UnitBuilder& builder, const ArchSpec& arch, const LayerSpec& layer) {
  if (arch.norm_placement != NormPlacement::kAfter) {
    builder.norm(Module::kAttentionNorm, arch.hidden, arch.norm);
  }
  mixer_parameters(layer.mixer).add(builder, arch, layer);
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
  const int64_t turn = moe.fused && moe.interleaved ? 1 : width;
  // Experts with matrices of their own have this module only if it has an adapter.
  if (arch.gated && builder.has(Module::kExpertsGateUp)) {
    builder.holds(Module::kExpertsGateUp, {turn, turn});
  }
}

void add_dense(UnitBuilder& builder, const ArchSpec& arch) {
  if (arch.fused_gate_up) {
    builder.matrix(Module::kGateUp, 2 * arch.intermediate, arch.hidden, arch.mlp_bias);
    builder.holds(Module::kGateUp, {arch.intermediate, arch.intermediate});
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
  parameters.back().spec.matrices.none = true;
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
