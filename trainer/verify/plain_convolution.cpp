#include "trainer/verify/plain_layer.h"
#include "trainer/verify/plain_mixers.h"

namespace longshore {

at::Tensor plain_convolution(const PlainDecoder::Layer& layer, const at::Tensor& x,
                             PlainDecoder::Shared&) {
  const at::Tensor parts = layer.linear(Module::kConvolutionIn, x);
  const auto part = [&](int64_t number) {
    return parts.narrow(1, number * layer.arch().hidden, layer.arch().hidden);
  };
  at::Tensor y = plain_convolved(part(0) * part(2), layer.get(Module::kConvolutionTaps));
  const at::Tensor bias = layer.get(Module::kConvolutionTaps, ParameterRole::kBias);
  if (bias.defined()) y = y + bias;
  return layer.linear(Module::kConvolutionOut, part(1) * y);
}

}  // namespace longshore
