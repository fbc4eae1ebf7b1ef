// UnitRunner: runs one unit after another for all micro-batches of a step ("layer-major"), forward,
// and backward with recompute. Owned by the engine; one compute thread calls it.
//
// A step: begin_step, forward of every unit but the last in order, then backward of every unit that
// needs it, last to first. Backward of the last unit is the loss, forward and backward in one go.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fsdp/carry_store.h"
#include "fsdp/grad_accumulator.h"
#include "fsdp/parameter_views.h"
#include "model/unit.h"
#include "offload/staging/prefetcher.h"

namespace longshore {

enum class Recompute : uint8_t { kUnit, kNone };

// The loss of a step or of an evaluation.
struct LossSum {
  double loss = 0.0;    // sum over trained positions
  int64_t trained = 0;  // number of trained positions
};

class UnitRunner {
 public:
  struct Memory {
    CarryStore::Memory carry;
    std::span<std::byte> gradient;  // of the largest unit
    // By unit: where gradients of lent (tied) parameters wait; empty for units that lend nothing.
    std::vector<std::span<std::byte>> waiting_gradients;
  };
  // All pointers must outlive the runner.
  UnitRunner(const Model* model, const std::vector<FlatLayout>* layouts, DType compute,
             Recompute recompute, Prefetcher* prefetcher, UnitPasses passes, Memory memory);
  ~UnitRunner();

  // The units of a step, in the order of each pass: forward without the last unit, backward from
  // the last unit down to the first that has, or whose carry feeds, a trainable parameter.
  const std::vector<UnitId>& forward_order() const { return forward_order_; }
  const std::vector<UnitId>& backward_order() const { return backward_order_; }

  // `batches` must outlive the step. Gradients are of loss_sum * scale.
  void begin_step(std::span<const MicroBatch> batches, double scale);
  void forward(UnitId unit);
  // The unit's gradient, summed over micro-batches (trainable front of the flat parameter), valid
  // until the next call. Empty for a unit without trainable parameters.
  std::span<float> backward(UnitId unit);
  const LossSum& loss() const { return loss_; }

  // Forward and loss without gradients.
  LossSum evaluate(std::span<const MicroBatch> batches);
  // fp32 [rows, vocabulary]: the next token's scores at `positions` of one micro-batch.
  at::Tensor logits(const MicroBatch& batch, const at::Tensor& positions);

 private:
  class Sink;
  struct SavedGraph;
  void begin(std::span<const MicroBatch> batches, double scale, const PassPlan* pass);
  // A unit's own lease and those of the units it borrows from.
  std::vector<UnitLease> bind(UnitId unit);
  void forward_without_graph(UnitId unit);
  void forward_with_graph(UnitId unit);
  void backward_loss(UnitId unit, GradSink& sink);
  void backward_unit(UnitId unit, int32_t micro_batch, GradSink& sink);
  void run_autograd(UnitId unit, int32_t micro_batch, const SavedGraph& graph, GradSink& sink);
  SavedGraph make_graph(UnitId unit, int32_t micro_batch);
  GradAccumulator* accumulator(UnitId unit) { return accumulators_[index_of(unit)].get(); }
  bool wants_grad_in(UnitId unit) const { return unit > backward_order_.back(); }
  UnitId last() const { return spec_->units.back().id; }
  static size_t index_of(UnitId unit) { return static_cast<size_t>(unit.value); }

  const Model* model_;
  const ModelSpec* spec_;
  Recompute recompute_;
  Prefetcher* prefetcher_;
  UnitPasses passes_;
  ParameterViews views_;
  CarryStore carry_;
  std::vector<std::unique_ptr<GradAccumulator>> accumulators_;  // by unit; null: nothing trainable
  std::vector<bool> lends_;                                     // by unit
  std::vector<UnitId> forward_order_, backward_order_;
  std::vector<std::vector<SavedGraph>> saved_;  // [unit][micro-batch], recompute = none
  std::span<const MicroBatch> batches_;
  double scale_ = 1.0;
  LossSum loss_;
};

}  // namespace longshore
