// Sparse units: a block whose MLP is a router and experts, whole or cut. Built by DecoderModel,
// immutable; compute thread only.
//
// [Note: experts run backward by themselves] Their graph would hold gate and up of every choice,
// top_k times those of a dense MLP, or the forward pass would be computed once more for nothing but
// the graph. So their backward goes expert by expert, last to first: gate and up again, then all
// gradients, into the sums at once (expert_math.h). Norm and routing are computed again from the
// activation checkpoint by the same operations, which give the same bits, or come with the carry.
// What recompute = "none" keeps of a sparse block is therefore nothing.
//
// [Note: groups of experts] The first group of a layer has norm, router and the expert for all
// tokens, the last one adds the residual. Between them go the running sum of outputs (fp32),
// weights and numbers of the chosen experts (fp32 [T, 2 * top_k]), the residual and the normed
// input, whose gradient is summed in fp32. Sums are taken in the order of experts (backward: from
// the last one) whatever the groups, so bits do not depend on them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/decoder_units.h"
#include "model/expert_math.h"
#include "model/expert_routing.h"
#include "model/sparse_groups.h"
#include "model/unit_cut.h"

namespace longshore {

// Norm, router and experts of a layer with what they add to the hidden state; or a group of them.
class ExpertsUnit : public Unit {
 public:
  ExpertsUnit(const ArchSpec& arch, int64_t layer, const TableRows& experts);
  std::string signature() const override;
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  // All positions choose the same experts, as many of this unit's as they can. (Of all experts they
  // do where nothing was drawn: equal scores go to the lowest.)
  void make_worst(Carry& in) const override;
  int64_t idle_elements() const override;
  bool has_router() const override { return experts_.begins(); }
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;

 private:
  struct State;
  struct Sums;
  State begin(UnitParameters parameters, const Carry& in) const;
  at::Tensor scores(UnitParameters parameters, const at::Tensor& x) const;
  at::Tensor shared_weights(UnitParameters parameters, const at::Tensor& x) const;
  void add_shared(UnitParameters parameters, const at::Tensor& x, const at::Tensor& sum) const;
  void shared_backward(UnitParameters parameters, const at::Tensor& x, const at::Tensor& grad,
                       const Sums& sums, GradientSink& sink) const;
  void add_experts(UnitParameters parameters, const State& state, const Dispatch& tokens,
                   const at::Tensor& sum) const;
  void experts_backward(UnitParameters parameters, const State& state, const at::Tensor& grad,
                        const Sums& sums, GradientSink& sink) const;
  void router_backward(UnitParameters parameters, const State& state, const at::Tensor& balance,
                       const Sums& sums, GradientSink& sink) const;
  at::Tensor norm_backward(UnitParameters parameters, const at::Tensor& h, const at::Tensor& grad,
                           GradientSink& sink) const;

  ArchSpec arch_;
  int64_t layer_;
  TableRows experts_;
  ModuleIndex index_;
  std::vector<ExpertPlaces> places_;  // of the unit's experts
  ExpertMath math_;
  ExpertPlaces shared_places_;
  ExpertMath shared_math_;
};

// Attention, then all experts.
class SparseBlock : public Unit {
 public:
  SparseBlock(const ArchSpec& arch, int64_t layer);
  std::string signature() const override;
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const override {
    return attention_.worst_documents(longest, device);
  }
  int64_t idle_elements() const override { return experts_.idle_elements(); }
  bool has_router() const override { return true; }
  AttentionHeads attention_heads() const override { return attention_.attention_heads(); }
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;

 private:
  size_t attention_parameters_;
  DecoderBlock attention_;
  ExpertsUnit experts_;
};

}  // namespace longshore
