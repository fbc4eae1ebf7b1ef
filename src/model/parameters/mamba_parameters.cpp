#include "model/parameters/mixer_parameters.h"

#include <array>

namespace longshore {
namespace {

constexpr std::array kMatrices = {Module::kMambaIn};
constexpr std::array kBare = {Module::kMambaRate, Module::kMambaStep, Module::kMambaSkip};

// The rates of decay begin between 1 and 16, and the steps as transformers' class makes them.
void add(UnitBuilder& builder, const ArchSpec& arch, const LayerSpec&) {
  const MambaSpec& mamba = arch.mamba;
  const InitSpec ones = {.kind = InitSpec::Kind::kOnes};
  builder.matrix(Module::kMambaIn, mamba.inner_width() + mamba.mixed_width() + mamba.heads,
                 arch.hidden, mamba.bias);
  const int64_t keyed = mamba.groups * mamba.state;
  builder.holds(Module::kMambaIn,
                {mamba.inner_width(), mamba.inner_width(), keyed, keyed, mamba.heads});
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

}  // namespace

MixerParameters mamba_parameters() {
  return {.add = add, .matrices = kMatrices, .bare = kBare};
}

}  // namespace longshore
