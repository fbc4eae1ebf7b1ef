// MambaMixer: Mamba-2 as a layer's mixer (mamba_scan.h). A block owns it; it is immutable. Compute
// thread only.
#pragma once

#include "model/mixer.h"

namespace longshore {

class MambaMixer final : public Mixer {
 public:
  MambaMixer(const ArchSpec& arch, const ModuleIndex& index);
  std::string signature() const override;
  // Includes the lengths with the most padding and with the most states for their positions.
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  int64_t activation_elements() const override;
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values) const override;

 private:
  ArchSpec arch_;
  ModuleIndex index_;
};

}  // namespace longshore
