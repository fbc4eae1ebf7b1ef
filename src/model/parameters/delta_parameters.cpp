#include "model/parameters/mixer_parameters.h"

#include <array>

namespace longshore {
namespace {

constexpr std::array kMatrices = {
    Module::kDeltaQkv,     Module::kDeltaGate,      Module::kDeltaBeta,  Module::kDeltaDecay,
    Module::kDeltaQkvGate, Module::kDeltaBetaDecay, Module::kDeltaOutput};
constexpr std::array kBare = {Module::kDeltaRate, Module::kDeltaStep};

// The rates of decay begin as transformers draws them, between 0.01 and 16.
void add(UnitBuilder& builder, const ArchSpec& arch, const LayerSpec&) {
  const DeltaSpec& delta = arch.delta;
  const int64_t heads = delta.value_heads, values = delta.value_width();
  if (delta.fused) {
    builder.matrix(Module::kDeltaQkvGate, delta.mixed_width() + values, arch.hidden, false);
    builder.matrix(Module::kDeltaBetaDecay, 2 * heads, arch.hidden, false);
    const int64_t times = heads / delta.key_heads, of_head = times * delta.value_dim;
    builder.holds(Module::kDeltaQkvGate, {delta.key_dim, delta.key_dim, of_head, of_head});
    builder.holds(Module::kDeltaBetaDecay, {times, times});
  } else {
    builder.matrix(Module::kDeltaQkv, delta.mixed_width(), arch.hidden, false);
    builder.holds(Module::kDeltaQkv, {delta.key_width(), delta.key_width(), values});
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

}  // namespace

MixerParameters delta_parameters() {
  return {.add = add, .matrices = kMatrices, .bare = kBare};
}

}  // namespace longshore
