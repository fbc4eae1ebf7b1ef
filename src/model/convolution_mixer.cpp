#include "model/convolution_mixer.h"

#include <array>

#include "model/mixer_passes.h"

namespace longshore {

ConvolutionMixer::ConvolutionMixer(const ArchSpec& arch, const ModuleIndex& index)
    : arch_(arch), index_(index) {}

std::string ConvolutionMixer::signature() const {
  return " convolution " + std::to_string(arch_.convolution.taps) + " " +
         std::to_string(static_cast<int64_t>(arch_.convolution.bias));
}

std::vector<int64_t> ConvolutionMixer::worst_documents(int64_t longest, DeviceKind) const {
  return {longest};
}

at::Tensor ConvolutionMixer::forward(UnitParameters parameters, const at::Tensor& x,
                                     const NormWeights& norm, const MicroBatch& batch,
                                     Values values) const {
  const std::array input{index_.linear(parameters, Module::kConvolutionIn, batch)};
  const std::vector<at::Tensor> parts =
      linear_group(x, norm, input, arch_.transposed_weights)[0].chunk(3, 1);
  const ConvolutionWeights weights{.taps = index_.weight(parameters, Module::kConvolutionTaps),
                                   .bias = index_.bias(parameters, Module::kConvolutionTaps),
                                   .activated = false};
  const at::Tensor mixed =
      parts[1] * causal_convolution(parts[0] * parts[2], weights, batch.positions);
  const std::array output{index_.linear(parameters, Module::kConvolutionOut, batch)};
  return linear_group(mixed, {}, output, arch_.transposed_weights, values)[0];
}

}  // namespace longshore
