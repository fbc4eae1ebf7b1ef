#include "model/mixers/mixer.h"

#include "model/mixers/continued_convolution.h"
#include "model/mixers/mamba_scan.h"
#include "model/mixers/mamba_steps.h"
#include "model/mixers/mixer_passes.h"
#include "model/ops/document_chunks.h"

namespace longshore {
namespace {

// Mamba-2 (mamba_scan.h).
class MambaMixer final : public Mixer {
 public:
  using Mixer::Mixer;

  UnitTraits traits(const UnitUse& use) const override {
    const MambaSpec& mamba = arch_.mamba;
    // Writing and reading the state, and the products of positions of a chunk.
    const int64_t elements = mamba.inner_width() * (2 * mamba.state + kScanChunk) +
                             kScanChunk * mamba.groups * mamba.state;
    return {.signature = signature_text(" mamba", mamba.heads, mamba.head_dim, mamba.groups,
                                        mamba.state, mamba.taps, mamba.convolution_bias),
            .documents = worst_chunk_lengths(use.longest_document),
            .activation_elements = elements};
  }
  std::vector<StateTensor> states(const StateUse& use) const override {
    return {convolution_state(arch_.mamba.taps, arch_.mamba.mixed_width(), use),
            mamba_state(arch_.mamba)};
  }
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values, KeysValues*) const override {
    const MambaSpec& mamba = arch_.mamba;
    std::vector<at::Tensor> parts =
        products(parameters, x, norm, {Module::kMambaIn}, batch)[0].split_with_sizes(
            {mamba.inner_width(), mamba.mixed_width(), mamba.heads}, 1);
    const ConvolutionWeights convolution{.taps = index_.weight(parameters, Module::kMambaConv),
                                         .bias = index_.bias(parameters, Module::kMambaConv)};
    MambaInputs scan{.mixed = {},
                     .steps = parts[2],
                     .rate = index_.weight(parameters, Module::kMambaRate),
                     .offset = index_.weight(parameters, Module::kMambaStep),
                     .skip = index_.weight(parameters, Module::kMambaSkip)};
    at::Tensor mixed;
    if (batch.continued != nullptr) {
      const std::vector<SequenceRows> sequences = sequence_rows(batch, number_);
      scan.mixed = continued_convolution(parts[1], convolution, sequences, 0);
      mixed = mamba_steps(scan, mamba, sequences, 1);
    } else {
      scan.mixed = causal_convolution(parts[1], convolution, batch.positions);
      mixed = mamba_scan(scan, mamba, batch.document_starts);
    }
    mixed = norm_of_gated(mixed, parts[0], index_.weight(parameters, Module::kMambaNorm),
                          mamba.groups, arch_.norm_eps);
    parts.clear();
    return products(parameters, mixed, {}, {Module::kMambaOut}, batch, values)[0];
  }
};

}  // namespace

std::unique_ptr<Mixer> make_mamba_mixer(const ArchSpec& arch, int64_t layer,
                                        const ModuleIndex& index) {
  return std::make_unique<MambaMixer>(arch, layer, index);
}

}  // namespace longshore
