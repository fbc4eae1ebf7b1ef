// ConvolutionMixer: a short causal convolution between two gates as a layer's mixer, as in LFM2. A
// block owns it; it is immutable. Compute thread only.
#pragma once

#include "model/mixer.h"

namespace longshore {

class ConvolutionMixer final : public Mixer {
 public:
  ConvolutionMixer(const ArchSpec& arch, const ModuleIndex& index);
  std::string signature() const override;
  // Its memory does not depend on the lengths of documents.
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values) const override;

 private:
  ArchSpec arch_;
  ModuleIndex index_;
};

}  // namespace longshore
