// Decoder units: the embedding, the block and the head of every decoder family. Built by
// DecoderModel, immutable; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/arch_spec.h"
#include "model/differentiable_ops.h"
#include "model/families.h"
#include "model/model_spec.h"
#include "model/rope_table.h"
#include "model/unit.h"

namespace longshore {

// Where a unit's list of parameters has the weight and the bias of each part; -1 = not there.
// Without those that each expert has.
class ModuleIndex {
 public:
  explicit ModuleIndex(const std::vector<ModuleParameter>& parameters);
  // Undefined where there is none.
  at::Tensor weight(UnitParameters parameters, Module module) const;
  at::Tensor bias(UnitParameters parameters, Module module) const;
  LinearWeights linear(UnitParameters parameters, Module module) const {
    return {weight(parameters, module), bias(parameters, module)};
  }
  int32_t weight_index(Module module) const { return weights_[static_cast<size_t>(module)]; }
  int32_t bias_index(Module module) const { return biases_[static_cast<size_t>(module)]; }

 private:
  std::array<int32_t, kModuleCount> weights_;
  std::array<int32_t, kModuleCount> biases_;
};

// What rows of the embedding are multiplied by; `rounded`: to the dtype of `like`.
double embedding_scale_for(double scale, bool rounded, const at::Tensor& like);

// Token rows, scaled where the family says so, plus rows of learned positions where it has them.
class EmbeddingUnit : public Unit {
 public:
  explicit EmbeddingUnit(const ArchSpec& arch);
  std::string signature() const override { return "embedding"; }
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;

 private:
  ModuleIndex index_;
  double scale_;
  bool scale_rounded_;
};

// h = x + attention(norm(x)); y = h + mlp(norm(h)); with norms behind instead, or as well, and
// scaled branches, where the family has them. Or one of the two alone.
class DecoderBlock : public Unit {
 public:
  DecoderBlock(const ArchSpec& arch, int64_t layer, BlockPart part = BlockPart::kWhole);
  std::string signature() const override;
  // A window's length too: the longest that attention takes in one piece.
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  AttentionHeads attention_heads() const override;
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;

 private:
  // No weight where the family has no such norm.
  NormWeights norm_weights(UnitParameters parameters, Module module) const;
  // x itself then.
  at::Tensor norm(UnitParameters parameters, Module module, const at::Tensor& x) const;
  // x + residual scale * branch, which a post norm normalises first. `values` are those of the sum.
  at::Tensor add_to(const at::Tensor& x, UnitParameters parameters, Module post_norm,
                    at::Tensor branch, Values values) const;
  // Whether a branch's values are read when the sum's are `sum`: a post norm's backward reads them.
  Values branch_values(Module post_norm, Values sum) const;
  at::Tensor attention(UnitParameters parameters, const at::Tensor& x, const MicroBatch& batch,
                       Values values) const;
  std::vector<at::Tensor> query_key_value(UnitParameters parameters, const at::Tensor& x) const;
  at::Tensor position_head(UnitParameters parameters, Module head_norm, const at::Tensor& x,
                           const MicroBatch& batch) const;
  // [T, 1], what queries are multiplied by.
  at::Tensor query_growth(const at::Tensor& positions, const at::Tensor& like) const;
  at::Tensor mlp(UnitParameters parameters, const at::Tensor& x, Values values) const;

  ArchSpec arch_;
  LayerSpec layer_;
  BlockPart part_;
  ModuleIndex index_;
  std::optional<RopeTable> rope_;  // of layers that rotate
};

}  // namespace longshore
