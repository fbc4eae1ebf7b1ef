#include "model/mamba_mixer.h"

#include <array>

#include "model/document_chunks.h"
#include "model/mamba_scan.h"
#include "model/mixer_passes.h"

namespace longshore {

MambaMixer::MambaMixer(const ArchSpec& arch, const ModuleIndex& index)
    : arch_(arch), index_(index) {}

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
