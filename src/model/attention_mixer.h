// AttentionMixer: the attention of every decoder family, as a layer's mixer. A block owns it; it is
// immutable. Compute thread only.
#pragma once

#include <optional>

#include "model/mixer.h"
#include "model/rope_table.h"

namespace longshore {

class AttentionMixer final : public Mixer {
 public:
  AttentionMixer(const ArchSpec& arch, const LayerSpec& layer, const ModuleIndex& index);
  std::string signature() const override;
  // Includes the lengths at which memory changes, such as the window (then one piece).
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  AttentionHeads attention_heads() const override;
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values) const override;
  at::Tensor forward_sharing(UnitParameters parameters, const at::Tensor& x,
                             const NormWeights& norm, const MicroBatch& batch, Values values,
                             KeysValues& shared) const override;

 private:
  // Returns forward's result; a null `shared` is a layer that shares no keys and values.
  at::Tensor mix(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                 const MicroBatch& batch, Values values, KeysValues* shared) const;
  const RopeSpec& rope_spec() const { return layer_.local_rope ? arch_.local_rope : arch_.rope; }
  // Returns query, key and value, and the gate of the output if the family has one. A layer that
  // reads another's keys and values has the query alone.
  std::vector<at::Tensor> query_key_value(UnitParameters parameters, const at::Tensor& x,
                                          const NormWeights& norm, const MicroBatch& batch) const;
  at::Tensor position_head(UnitParameters parameters, Module head_norm, const at::Tensor& x,
                           const MicroBatch& batch) const;
  // Returns x itself if the family lacks this norm.
  at::Tensor head_normed(UnitParameters parameters, Module module, const at::Tensor& x) const;
  // Returns x with each head divided by its root mean square.
  at::Tensor plain_normed(const at::Tensor& x, NormKind kind) const;
  // Returns x with its values limited, or x itself if the family does not clip.
  at::Tensor clipped(const at::Tensor& x) const;
  // Returns the factor of the queries, [T, 1].
  at::Tensor query_growth(const at::Tensor& positions, const at::Tensor& like) const;

  ArchSpec arch_;  // with the sizes of the layer's heads
  LayerSpec layer_;
  ModuleIndex index_;
  std::optional<RopeTable> rope_;  // only in layers that rotate
};

}  // namespace longshore
