// LatentMixer: latent attention as a layer's mixer. Keys and values are computed from their latent
// for every head, so attention is that of other models. A block owns it; it is immutable. Compute
// thread only.
#pragma once

#include "model/mixer.h"
#include "model/rope_table.h"

namespace longshore {

// The norms of latents have an eps of their own in transformers.
inline constexpr double kLatentNormEps = 1e-6;

class LatentMixer final : public Mixer {
 public:
  LatentMixer(const ArchSpec& arch, const LayerSpec& layer, const ModuleIndex& index);
  std::string signature() const override;
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  AttentionHeads attention_heads() const override;
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values) const override;

 private:
  // Returns norm(latent) times the matrix of `up`.
  at::Tensor expanded(UnitParameters parameters, const at::Tensor& latent, Module norm, Module up,
                      const MicroBatch& batch) const;

  ArchSpec arch_;
  LayerSpec layer_;
  ModuleIndex index_;
  RopeTable rope_;
};

}  // namespace longshore
