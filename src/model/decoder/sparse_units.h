// sparse_units: a block whose MLP is a router with experts (SparseBlock), and those experts, all or
// a group (ExpertsUnit). DecoderModel builds them; they are immutable. Compute thread only.
//
// [Note: experts run backward by themselves] An autograd graph would hold gate and up of every
// choice, top_k times those of a dense MLP, or need a second forward pass to build it. Instead
// backward runs expert by expert, last to first: it recomputes gate and up, then adds all gradients
// to the sums (expert_math.h). It recomputes norm and routing from the activation checkpoint with
// the same operations and bits, or gets them with the carry. So a sparse block keeps no graph with
// recompute = "none".
//
// [Note: groups of experts] The first group of a layer has norm, router and the expert for all
// tokens; the last one adds the residual. The carry between groups is the running sum of outputs
// (fp32), weights and indices of the chosen experts (fp32 [T, 2 * top_k]), the residual, and the
// experts' input, whose gradient is summed in fp32. Sums run in the order of experts (backward:
// reversed) for any grouping, so bits do not depend on it. Where the experts work in a width of
// their own (MoeSpec::latent), the residual has the output of the expert for all tokens, and the
// last group, which has the matrix behind the experts, adds up its sum again in backward.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/decoder/decoder_units.h"
#include "model/decoder/expert_math.h"
#include "model/parameters/unit_cut.h"

namespace longshore {

// Returns the group of all experts of a layer.
TableRows all_experts(const ArchSpec& arch);

// A layer's norm, router and experts with the residual, or a group of its experts.
class ExpertsUnit : public Unit {
 public:
  ExpertsUnit(const ArchSpec& arch, int64_t layer, const TableRows& experts);
  // The worst input makes all positions choose the same experts, as many of this unit's as
  // possible. The first group needs no values: for a zero input equal scores choose the lowest
  // experts.
  UnitTraits traits(const UnitUse& use) const override;
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;

 private:
  // Returns UnitTraits::idle_elements.
  int64_t idle_elements() const;
  struct State;
  struct Sums;
  State begin(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const;
  // Sets what differs in State where experts run beside the MLP.
  void begin_beside(UnitParameters parameters, const MicroBatch& batch, State& state) const;
  // Returns the block's output where experts run beside the MLP. `in` is the residual and the sum
  // of the experts' outputs, [T, hidden] each. Has an autograd graph if its inputs do.
  at::Tensor joined(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const;
  // Returns the gradients of joined()'s inputs, given that of its output.
  Carry joined_backward(UnitParameters parameters, const State& state, const MicroBatch& batch,
                        const Carry& grad_out, GradientSink& sink) const;
  // Adds the gradient of the experts' scales and multiplies that of the weights by them.
  void scale_backward(UnitParameters parameters, const State& state, const Sums& sums,
                      GradientSink& sink) const;
  // Returns the dtype in which the router computes.
  at::ScalarType router_type(const at::Tensor& x) const;
  at::Tensor scores(UnitParameters parameters, const at::Tensor& normed,
                    const MicroBatch& batch) const;
  // Whether the experts work in another width than the model.
  bool in_latent() const { return arch_.moe.latent > 0; }
  // Returns one of the unit's experts.
  Expert expert(UnitParameters parameters, int64_t place, const MicroBatch& batch) const;
  // Returns the expert for all tokens.
  Expert shared_expert(UnitParameters parameters, const MicroBatch& batch) const;
  // Returns the gradient of the sum of the experts' outputs, given that of the matrix behind them,
  // whose gradient it adds. `in` is the carry of the last group.
  at::Tensor grad_of_sum(UnitParameters parameters, const State& state, const Carry& in,
                         const at::Tensor& grad, GradientSink& sink) const;
  at::Tensor shared_weights(UnitParameters parameters, const at::Tensor& x,
                            const MicroBatch& batch) const;
  void add_shared(UnitParameters parameters, const at::Tensor& x, const MicroBatch& batch,
                  const at::Tensor& sum) const;
  void shared_backward(UnitParameters parameters, const at::Tensor& x, const at::Tensor& grad,
                       const Sums& sums, GradientSink& sink) const;
  void add_experts(UnitParameters parameters, const State& state, const Dispatch& tokens,
                   const MicroBatch& batch, const at::Tensor& sum) const;
  void experts_backward(UnitParameters parameters, const State& state, const at::Tensor& grad,
                        const Sums& sums, GradientSink& sink) const;
  // Adds the gradient of the router's input to `input`, fp32 [T, hidden].
  void router_backward(UnitParameters parameters, const State& state, const at::Tensor& balance,
                       const Sums& sums, const at::Tensor& input, GradientSink& sink) const;
  // Returns the gradient of h, which the norm of this module took.
  at::Tensor norm_backward(UnitParameters parameters, Module module, NormKind kind,
                           const at::Tensor& h, const at::Tensor& grad, GradientSink& sink) const;

  ArchSpec arch_;
  int64_t layer_;
  TableRows experts_;
  ModuleIndex index_;
  ExpertMath math_, shared_math_;
  double root_;  // factor of the router's input beside an MLP
};

// A block of attention and all experts. Keys and values that later layers read pass through the
// experts.
class SparseBlock : public Unit {
 public:
  SparseBlock(const ArchSpec& arch, int64_t layer);
  UnitTraits traits(const UnitUse& use) const override;
  std::vector<LayerState> layer_states(const StateUse& use) const override {
    return attention_.layer_states(use);
  }
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
