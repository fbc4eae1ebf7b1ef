// UnitRunner: runs one unit after another for all micro-batches of a pass ("layer-major"), forward,
// and backward with recompute. Owned by the engine; begin_*() and results are for its thread while
// no pass runs, the rest for the compute lane. Which unit when, over which slots and into which
// gradient buffer is the schedule's decision.
//
// A step: begin_step, forward of every unit but the last in order, then backward of every unit that
// needs it, last to first. Backward of the last unit is the loss, forward and backward in one go.
// Evaluation and logits: forward of every unit in order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/unit.h"
#include "offload/engine/carry_store.h"
#include "offload/engine/gradient_accumulator.h"
#include "offload/engine/parameter_views.h"
#include "offload/schedule/pass_plan.h"
#include "offload/staging/stage_ring.h"

namespace longshore {

// The loss of a step or of an evaluation.
struct LossSum {
  double loss = 0.0;    // sum over trained positions
  int64_t trained = 0;  // number of trained positions
};

class UnitRunner {
 public:
  struct Memory {
    CarryStore::Memory carry;
    std::vector<std::span<std::byte>> gradients;  // the buffers, each of the largest unit
    // By unit: where gradients of lent (tied) parameters wait; empty for units that lend nothing.
    std::vector<std::span<std::byte>> waiting_gradients;
    at::Device device = at::kCPU;  // where all of it, and the slots, are
    // Adds up over ranks; empty: there is one. Called once in the backward of a step that balances
    // experts.
    std::function<void(std::span<double>)> sum_over_ranks = {};
  };
  // Pointers must outlive the runner. `kept_graphs`: of so many units before the loss; the others
  // are recomputed.
  UnitRunner(const Model* model, const std::vector<FlatLayout>* layouts, DType compute,
             int32_t kept_graphs, Memory memory);
  ~UnitRunner();

  // From the last unit down to the first that has, or whose carry feeds, a trainable parameter.
  const std::vector<UnitId>& backward_order() const { return backward_order_; }

  // What `batches` refer to must outlive the pass. Gradients are of loss_sum * scale, and of the
  // balance loss.
  void begin_step(std::span<const MicroBatch> batches, double scale);
  // Forward and loss without gradients.
  void begin_evaluation(std::span<const MicroBatch> batches);
  // The scores at `positions` of one micro-batch; both must outlive the pass.
  void begin_logits(const MicroBatch& batch, const at::Tensor& positions);

  // `leases`: the unit's own, then those of the units it borrows from.
  void forward(UnitId unit, std::span<const UnitLease> leases);
  void backward(UnitId unit, std::span<const UnitLease> leases, std::optional<int32_t> gradient);
  // The unit's gradient, summed over micro-batches (trainable front of the flat parameter), from
  // the end of its backward until the buffer's next one. Empty for a unit without trainable
  // parameters. Any lane.
  std::span<float> sums(UnitId unit, std::optional<int32_t> gradient) const;

  const LossSum& loss() const { return loss_; }
  // Of the rank's micro-batches, for router_statistics; empty where nobody asks.
  std::vector<double> router_sums() const;
  // fp32 [positions, vocabulary]: the next token's scores.
  const at::Tensor& logits() const { return logits_; }
  CarryStore& carry() { return carry_; }
  int32_t micro_batches() const { return static_cast<int32_t>(batches_.size()); }

 private:
  class Sink;
  struct SavedGraph;
  enum class Mode : uint8_t { kTrain, kEvaluate, kLogits };
  void begin(Mode mode, std::span<const MicroBatch> batches);
  void bind(std::span<const UnitLease> leases);
  void finish_forward();
  // Before backward: the choices of all ranks are known.
  void settle_routers();
  void forward_without_graph(UnitId unit);
  void forward_with_graph(UnitId unit);
  void backward_loss(UnitId unit, GradientSink& sink);
  void backward_unit(UnitId unit, int32_t micro_batch, GradientSink& sink);
  void run_autograd(UnitId unit, int32_t micro_batch, const SavedGraph& graph, GradientSink& sink);
  SavedGraph make_graph(UnitId unit, const Carry& in, const MicroBatch& batch);
  GradientAccumulator* accumulator(UnitId unit, std::optional<int32_t> gradient) const;
  // Where gradients of the unit's own parameters go now.
  GradientAccumulator* target(UnitId unit) const;
  bool wants_grad_in(UnitId unit) const { return unit > backward_order_.back(); }
  UnitId last() const { return spec_->units.back().id; }
  static size_t index_of(UnitId unit) { return static_cast<size_t>(unit.value); }

  const Model* model_;
  const ModelSpec* spec_;
  UnitId first_kept_;  // graphs of this and later units are kept from forward to backward
  ParameterViews views_;
  CarryStore carry_;
  // By unit: one for each buffer, one in all for a unit that owns_tied, none: nothing trainable.
  std::vector<std::vector<std::unique_ptr<GradientAccumulator>>> accumulators_;
  std::vector<bool> owns_tied_;  // by unit
  std::vector<UnitId> backward_order_;
  std::vector<std::vector<SavedGraph>> saved_;  // [unit][micro-batch], recompute = none
  Mode mode_ = Mode::kTrain;
  std::optional<RouterLoad> routers_;  // none: nobody asks
  double balance_ = 0.0;
  std::function<void(std::span<double>)> sum_over_ranks_;
  bool routers_settled_ = false;
  std::vector<MicroBatch> batches_;
  double scale_ = 1.0;
  std::optional<int32_t> gradient_;  // the buffer of the unit that runs backward
  LossSum loss_;
  at::Tensor positions_, logits_;
  std::vector<at::Tensor> logits_parts_;  // of pieces of the head
};

}  // namespace longshore
