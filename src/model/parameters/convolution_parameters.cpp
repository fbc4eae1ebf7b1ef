#include "model/parameters/mixer_parameters.h"

#include <array>

namespace longshore {
namespace {

constexpr std::array kMatrices = {Module::kConvolutionIn, Module::kConvolutionOut};

void add(UnitBuilder& builder, const ArchSpec& arch, const LayerSpec&) {
  const ConvolutionSpec& convolution = arch.convolution;
  const InitSpec taps = normal_init(arch.initializer_range);
  builder.matrix(Module::kConvolutionIn, 3 * arch.hidden, arch.hidden, convolution.bias);
  builder.holds(Module::kConvolutionIn, {arch.hidden, arch.hidden, arch.hidden});
  builder.filled(Module::kConvolutionTaps, {arch.hidden, 1, convolution.taps}, taps);
  if (convolution.bias) builder.zeros(Module::kConvolutionTaps, arch.hidden);
  builder.matrix(Module::kConvolutionOut, arch.hidden, arch.hidden, convolution.bias,
                 arch.residual_init_scale);
}

}  // namespace

MixerParameters convolution_parameters() {
  return {.add = add, .matrices = kMatrices};
}

}  // namespace longshore
