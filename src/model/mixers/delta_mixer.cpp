#include "model/mixers/mixer.h"

#include "model/mixers/continued_convolution.h"
#include "model/mixers/delta_rule.h"
#include "model/mixers/delta_steps.h"
#include "model/mixers/mixer_passes.h"
#include "model/ops/document_chunks.h"

namespace longshore {
namespace {

// Gated DeltaNet (delta_rule.h).
class DeltaMixer final : public Mixer {
 public:
  using Mixer::Mixer;

  UnitTraits traits(const UnitUse& use) const override {
    const DeltaSpec& delta = arch_.delta;
    const int64_t widths = delta.key_dim + delta.value_dim;
    // Products with the state, the products of positions of a chunk, and the triangular system.
    const int64_t head = 3 * delta.key_dim * delta.value_dim + kScanChunk * widths +
                         kScanChunk * (delta.key_dim + widths / 2);
    return {.signature = signature_text(" delta", delta.key_heads, delta.value_heads, delta.key_dim,
                                        delta.value_dim, delta.taps, delta.fused),
            .documents = worst_chunk_lengths(use.longest_document),
            .activation_elements = delta.value_heads * head};
  }
  std::vector<StateTensor> states(const StateUse& use) const override {
    return {convolution_state(arch_.delta.taps, arch_.delta.mixed_width(), use),
            delta_state(arch_.delta)};
  }
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values, KeysValues*) const override {
    std::vector<at::Tensor> inputs = inputs_of(parameters, x, norm, batch);
    const ConvolutionWeights convolution{.taps = index_.weight(parameters, Module::kDeltaConv)};
    DeltaInputs rule{.mixed = {},
                     .beta = inputs[2],
                     .decay = inputs[3],
                     .rate = index_.weight(parameters, Module::kDeltaRate),
                     .step = index_.weight(parameters, Module::kDeltaStep)};
    at::Tensor mixed;
    if (batch.continued != nullptr) {
      const std::vector<SequenceRows> sequences = sequence_rows(batch, number_);
      rule.mixed = continued_convolution(inputs[0], convolution, sequences, 0);
      mixed = delta_steps(rule, arch_.delta, sequences, 1);
    } else {
      rule.mixed = causal_convolution(inputs[0], convolution, batch.positions);
      mixed = delta_rule(rule, arch_.delta, batch.document_starts);
    }
    mixed =
        gated_norm(mixed, inputs[1], index_.weight(parameters, Module::kDeltaNorm), arch_.norm_eps);
    inputs.clear();
    return products(parameters, mixed, {}, {Module::kDeltaOutput}, batch, values)[0];
  }

 private:
  // Returns queries with keys and values, gate, beta and decay.
  std::vector<at::Tensor> inputs_of(UnitParameters parameters, const at::Tensor& x,
                                    const NormWeights& norm, const MicroBatch& batch) const {
    const DeltaSpec& delta = arch_.delta;
    if (!delta.fused) {
      return products(
          parameters, x, norm,
          {Module::kDeltaQkv, Module::kDeltaGate, Module::kDeltaBeta, Module::kDeltaDecay}, batch);
    }
    const std::vector<at::Tensor> fused =
        products(parameters, x, norm, {Module::kDeltaQkvGate, Module::kDeltaBetaDecay}, batch);
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
};

}  // namespace

std::unique_ptr<Mixer> make_delta_mixer(const ArchSpec& arch, int64_t layer,
                                        const ModuleIndex& index) {
  return std::make_unique<DeltaMixer>(arch, layer, index);
}

}  // namespace longshore
