// Mixers that begin with a short causal convolution instead of attention: ConvolutionMixer,
// DeltaMixer and MambaMixer. A block owns its mixer, which is immutable. Compute thread only.
#pragma once

#include "model/mixer.h"

namespace longshore {

// A short causal convolution between two gates, as in LFM2.
class ConvolutionMixer final : public Mixer {
 public:
  ConvolutionMixer(const ArchSpec& arch, const ModuleIndex& index) : arch_(arch), index_(index) {}
  std::string signature() const override;
  // Its memory does not depend on the lengths of documents.
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values) const override;

 private:
  ArchSpec arch_;
  ModuleIndex index_;
};

// Gated DeltaNet (delta_rule.h).
class DeltaMixer final : public Mixer {
 public:
  DeltaMixer(const ArchSpec& arch, const ModuleIndex& index) : arch_(arch), index_(index) {}
  std::string signature() const override;
  // Includes the lengths with the most padding and with the most states for their positions.
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  int64_t activation_elements() const override;
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values) const override;

 private:
  // Returns queries with keys and values, gate, beta and decay.
  std::vector<at::Tensor> products(UnitParameters parameters, const at::Tensor& x,
                                   const NormWeights& norm, const MicroBatch& batch) const;

  ArchSpec arch_;
  ModuleIndex index_;
};

// Mamba-2 (mamba_scan.h).
class MambaMixer final : public Mixer {
 public:
  MambaMixer(const ArchSpec& arch, const ModuleIndex& index) : arch_(arch), index_(index) {}
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
