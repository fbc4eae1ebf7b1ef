// decoder_units: the embedding and the block of every decoder family. DecoderModel builds them;
// they are immutable. Compute thread only.
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

// Maps each module to the indices of its parameters in a unit's parameters; -1 for what it lacks.
// It leaves out parameters of single experts.
class ModuleIndex {
 public:
  // `lora_scaling` is AdapterSpec::scaling.
  explicit ModuleIndex(const std::vector<ModuleParameter>& parameters, double lora_scaling = 1.0);
  // Undefined if the unit has none.
  at::Tensor weight(UnitParameters parameters, Module module) const {
    return tensor(parameters, module, ParameterRole::kWeight);
  }
  at::Tensor bias(UnitParameters parameters, Module module) const {
    return tensor(parameters, module, ParameterRole::kBias);
  }
  // `batch` has the keys of the adapter's dropout.
  LinearWeights linear(UnitParameters parameters, Module module, const MicroBatch& batch) const;
  int32_t weight_index(Module module) const { return index(module, ParameterRole::kWeight); }
  int32_t bias_index(Module module) const { return index(module, ParameterRole::kBias); }

 private:
  int32_t index(Module module, ParameterRole role) const {
    return indices_[static_cast<size_t>(role)][static_cast<size_t>(module)];
  }
  at::Tensor tensor(UnitParameters parameters, Module module, ParameterRole role) const;

  std::array<std::array<int32_t, kModuleCount>, kRoleCount> indices_;
  std::array<InputDropout, kModuleCount> dropouts_;  // without keys
  double lora_scaling_;
};

// Returns the factor of embedding rows; `rounded` rounds it to the dtype of `like`.
double embedding_scale_for(double scale, bool rounded, const at::Tensor& like);

// Looks up token rows, scales them if the family does, and adds learned positions if it has them.
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

// h = x + attention(norm(x)); y = h + mlp(norm(h)). Depending on the family, norms come after the
// branches or on both sides, and branches are scaled. A unit may also be one of the two halves.
class DecoderBlock : public Unit {
 public:
  DecoderBlock(const ArchSpec& arch, int64_t layer, BlockPart part = BlockPart::kWhole);
  std::string signature() const override;
  // Includes the lengths at which memory changes, such as the window (then one piece).
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override;
  AttentionHeads attention_heads() const override;
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;

 private:
  // Returns no weight if the family lacks this norm.
  NormWeights norm_weights(UnitParameters parameters, Module module) const;
  // Returns x itself if the family lacks this norm.
  at::Tensor norm(UnitParameters parameters, Module module, const at::Tensor& x) const;
  // Returns x + residual scale * post_norm(branch). `values` says whether the sum is read.
  at::Tensor add_to(const at::Tensor& x, UnitParameters parameters, Module post_norm,
                    at::Tensor branch, Values values) const;
  // Returns whether the branch's values are read: always if a post norm's backward reads them.
  Values branch_values(Module post_norm, Values sum) const;
  at::Tensor attention(UnitParameters parameters, const at::Tensor& x, const MicroBatch& batch,
                       Values values) const;
  std::vector<at::Tensor> query_key_value(UnitParameters parameters, const at::Tensor& x,
                                          const MicroBatch& batch) const;
  at::Tensor position_head(UnitParameters parameters, Module head_norm, const at::Tensor& x,
                           const MicroBatch& batch) const;
  // Returns x with its values limited, or x itself if the family does not clip.
  at::Tensor clipped(const at::Tensor& x) const;
  // Returns the factor of the queries, [T, 1].
  at::Tensor query_growth(const at::Tensor& positions, const at::Tensor& like) const;
  at::Tensor mlp(UnitParameters parameters, const at::Tensor& x, const MicroBatch& batch,
                 Values values) const;

  ArchSpec arch_;
  int64_t number_;  // of the layer
  LayerSpec layer_;
  BlockPart part_;
  ModuleIndex index_;
  std::optional<RopeTable> rope_;  // only in layers that rotate
};

}  // namespace longshore
