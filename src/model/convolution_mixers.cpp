#include "model/convolution_mixers.h"

#include <array>

#include "model/delta_rule.h"
#include "model/document_chunks.h"
#include "model/mamba_scan.h"
#include "model/mixer_passes.h"

namespace longshore {

// ---- ConvolutionMixer ----

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

// ---- DeltaMixer ----

std::string DeltaMixer::signature() const {
  const DeltaSpec& delta = arch_.delta;
  std::string text = " delta";
  for (const int64_t value : {delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim,
                              delta.taps, static_cast<int64_t>(delta.fused)}) {
    text += " " + std::to_string(value);
  }
  return text;
}

std::vector<int64_t> DeltaMixer::worst_documents(int64_t longest, DeviceKind) const {
  return worst_chunk_lengths(longest);
}

int64_t DeltaMixer::activation_elements() const {
  const DeltaSpec& delta = arch_.delta;
  const int64_t widths = delta.key_dim + delta.value_dim;
  // Products with the state, the products of positions of a chunk, and the triangular system.
  const int64_t head = 3 * delta.key_dim * delta.value_dim + kScanChunk * widths +
                       kScanChunk * (delta.key_dim + widths / 2);
  return delta.value_heads * head;
}

std::vector<at::Tensor> DeltaMixer::products(UnitParameters parameters, const at::Tensor& x,
                                             const NormWeights& norm,
                                             const MicroBatch& batch) const {
  const DeltaSpec& delta = arch_.delta;
  if (!delta.fused) {
    const std::array weights{index_.linear(parameters, Module::kDeltaQkv, batch),
                             index_.linear(parameters, Module::kDeltaGate, batch),
                             index_.linear(parameters, Module::kDeltaBeta, batch),
                             index_.linear(parameters, Module::kDeltaDecay, batch)};
    return linear_group(x, norm, weights, arch_.transposed_weights);
  }
  const std::array weights{index_.linear(parameters, Module::kDeltaQkvGate, batch),
                           index_.linear(parameters, Module::kDeltaBetaDecay, batch)};
  const std::vector<at::Tensor> fused = linear_group(x, norm, weights, arch_.transposed_weights);
  const int64_t times = delta.value_heads / delta.key_heads, values = times * delta.value_dim;
  const auto by_head = [&](const at::Tensor& y, at::IntArrayRef widths) {
    return y.view({x.size(0), delta.key_heads, -1}).split_with_sizes(widths, 2);
  };
  const auto parts = by_head(fused[0], {delta.key_dim, delta.key_dim, values, values});
  const auto scalars = by_head(fused[1], {times, times});
  const auto flat = [](const at::Tensor& y) { return y.flatten(1).contiguous(); };
  const at::Tensor mixed =
      at::cat({parts[0].flatten(1), parts[1].flatten(1), parts[2].flatten(1)}, 1);
  return {mixed, flat(parts[3]), flat(scalars[0]), flat(scalars[1])};
}

at::Tensor DeltaMixer::forward(UnitParameters parameters, const at::Tensor& x,
                               const NormWeights& norm, const MicroBatch& batch,
                               Values values) const {
  std::vector<at::Tensor> inputs = products(parameters, x, norm, batch);
  const DeltaInputs rule{
      .mixed = causal_convolution(
          inputs[0], {.taps = index_.weight(parameters, Module::kDeltaConv)}, batch.positions),
      .beta = inputs[2],
      .decay = inputs[3],
      .rate = index_.weight(parameters, Module::kDeltaRate),
      .step = index_.weight(parameters, Module::kDeltaStep)};
  const at::Tensor mixed =
      gated_norm(delta_rule(rule, arch_.delta, batch.document_starts), inputs[1],
                 index_.weight(parameters, Module::kDeltaNorm), arch_.norm_eps);
  inputs.clear();
  const std::array output{index_.linear(parameters, Module::kDeltaOutput, batch)};
  return linear_group(mixed, {}, output, arch_.transposed_weights, values)[0];
}

// ---- MambaMixer ----

std::string MambaMixer::signature() const {
  const MambaSpec& mamba = arch_.mamba;
  std::string text = " mamba";
  for (const int64_t value : {mamba.heads, mamba.head_dim, mamba.groups, mamba.state, mamba.taps,
                              static_cast<int64_t>(mamba.convolution_bias)}) {
    text += " " + std::to_string(value);
  }
  return text;
}

std::vector<int64_t> MambaMixer::worst_documents(int64_t longest, DeviceKind) const {
  return worst_chunk_lengths(longest);
}

int64_t MambaMixer::activation_elements() const {
  const MambaSpec& mamba = arch_.mamba;
  // Writing and reading the state, and the products of positions of a chunk.
  return mamba.inner_width() * (2 * mamba.state + kScanChunk) +
         kScanChunk * mamba.groups * mamba.state;
}

at::Tensor MambaMixer::forward(UnitParameters parameters, const at::Tensor& x,
                               const NormWeights& norm, const MicroBatch& batch,
                               Values values) const {
  const MambaSpec& mamba = arch_.mamba;
  const std::array input{index_.linear(parameters, Module::kMambaIn, batch)};
  std::vector<at::Tensor> parts =
      linear_group(x, norm, input, arch_.transposed_weights)[0].split_with_sizes(
          {mamba.inner_width(), mamba.mixed_width(), mamba.heads}, 1);
  const ConvolutionWeights convolution{.taps = index_.weight(parameters, Module::kMambaConv),
                                       .bias = index_.bias(parameters, Module::kMambaConv)};
  const MambaInputs scan{.mixed = causal_convolution(parts[1], convolution, batch.positions),
                         .steps = parts[2],
                         .rate = index_.weight(parameters, Module::kMambaRate),
                         .offset = index_.weight(parameters, Module::kMambaStep),
                         .skip = index_.weight(parameters, Module::kMambaSkip)};
  const at::Tensor mixed =
      norm_of_gated(mamba_scan(scan, mamba, batch.document_starts), parts[0],
                    index_.weight(parameters, Module::kMambaNorm), mamba.groups, arch_.norm_eps);
  parts.clear();
  const std::array output{index_.linear(parameters, Module::kMambaOut, batch)};
  return linear_group(mixed, {}, output, arch_.transposed_weights, values)[0];
}

}  // namespace longshore
