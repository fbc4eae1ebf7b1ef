// UnitRunner: runs one unit after another for all micro-batches of a pass ("layer-major"): forward,
// and backward with recompute. Owned by the engine. Its thread calls begin_*() and reads results
// while no pass runs; the compute lane calls the rest. The schedule decides the order of units,
// their slots and gradient buffers.
//
// A step is begin_step, forward of every unit but the last in order, then backward in
// backward_order(). Backward of the last unit includes its forward and the loss. Evaluation and
// logits run forward of every unit in order.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/units/unit.h"
#include "offload/engine/carry_store.h"
#include "offload/schedule/pass_plan.h"
#include "offload/staging/prefetcher.h"
#include "shard/flat_layout.h"

namespace longshore {

// ParameterViews: a model's parameters as tensors over the slots that hold them. Each unit has one
// StorageImpl, which bind() points at the leased slot. Tensors saved by autograd share it, so a
// graph made over one slot runs backward over another. Owned by the engine, used by compute.

class ParameterViews {
 public:
  // A parameter is viewed in its storage type: a packed one is its bytes, a stacked one that is
  // packed a row of bytes for each matrix.
  ParameterViews(const Model& model, const std::vector<FlatLayout>& layouts,
                 at::Device device = at::kCPU);

  at::Device device() const { return device_; }
  // Points the unit's tensors at the leased slot. They are valid while the lease lives.
  void bind(const UnitLease& lease);
  // Returns autograd leaves: owned parameters, then tied ones. Trainable ones require a gradient.
  UnitParameters leaves(UnitId unit) const { return leaves_.at(static_cast<size_t>(unit.value)); }

 private:
  at::Device device_;                            // the device of the slots
  std::vector<c10::Storage> storages_;           // by unit
  std::vector<std::vector<at::Tensor>> leaves_;  // by unit
};

// GradientAccumulator: sums a unit's parameter gradients over the micro-batches of a step, in fp32
// on the device. `RunningSum` adds in the order of micro-batches. Owned by the engine; used by the
// compute thread.

// The fp32 sums of one unit, in the layout of its flat parameter's trainable front; padding is 0.
class GradientAccumulator {
 public:
  virtual ~GradientAccumulator() = default;
  // Begins new sums.
  virtual void clear() = 0;
  virtual void add(int32_t parameter, const at::Tensor& grad) = 0;
  virtual void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) = 0;
  virtual void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) = 0;
  virtual void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                              const at::Tensor& right) = 0;
  // Ends the sums: parameters without a gradient get zeros. Nothing may be added afterwards.
  virtual void finish() = 0;
  // Returns the finished sums, [trainable elements].
  virtual std::span<float> sums() = 0;
};

class RunningSum : public GradientAccumulator {
 public:
  // `memory` (on `device`) has >= layout.trainable_elements() * 4 bytes and outlives this.
  RunningSum(const UnitSpec& unit, const FlatLayout& layout, std::span<std::byte> memory,
             at::Device device = at::kCPU);

  void clear() override;
  void finish() override;
  void add(int32_t parameter, const at::Tensor& grad) override;
  void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) override;
  void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) override;
  void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                      const at::Tensor& right) override;
  std::span<float> sums() override { return sums_; }

 private:
  // Returns a parameter's sum with zeros in it if it is new.
  const at::Tensor& begun(int32_t parameter);

  std::span<float> sums_;
  std::vector<at::Tensor> paddings_;    // the elements between parameters
  std::vector<at::Tensor> parameters_;  // fp32 views in the parameters' shapes; undefined if frozen
  std::vector<bool> new_;               // by parameter: nothing was added since clear()
};

class UnitRunner {
 public:
  struct Memory {
    CarryStore::Memory carry;
    std::vector<std::span<std::byte>> gradients;  // buffers of the largest unit's size
    // By unit: the accumulator of a unit that owns tied parameters; else empty.
    std::vector<std::span<std::byte>> waiting_gradients;
    bool trains = true;            // false: no memory is there for gradients
    at::Device device = at::kCPU;  // the device of this memory and of the slots
    // Sums over ranks, once per step, in backward, if experts are balanced; empty for one rank.
    std::function<void(std::span<double>)> sum_over_ranks = {};
  };
  // Pointers must outlive the runner. Graphs of the last `kept_graphs` units before the loss are
  // kept; other units are recomputed, but for the results that `memory.carry` keeps.
  UnitRunner(const Model* model, const std::vector<FlatLayout>* layouts, DType compute,
             int32_t kept_graphs, Memory memory);
  ~UnitRunner();

  // Returns the units from the last down to the first that has a trainable parameter.
  const std::vector<UnitId>& backward_order() const { return backward_order_; }

  // Tensors of `batches` must outlive the pass. Gradients are of loss_sum * scale + balance loss.
  void begin_step(std::span<const MicroBatch> batches, double scale);
  // Begins a pass of forward and loss without gradients.
  void begin_evaluation(std::span<const MicroBatch> batches);
  // Begins a pass for the scores at `positions` of one micro-batch; both must outlive the pass.
  void begin_logits(const MicroBatch& batch, const at::Tensor& positions);

  // `leases` are the unit's own, then those of the owners of its tied parameters.
  void forward(UnitId unit, std::span<const UnitLease> leases);
  void backward(UnitId unit, std::span<const UnitLease> leases,
                std::optional<GradientBuffer> gradient);
  // Returns the unit's gradient, summed over micro-batches (trainable front of the flat parameter).
  // Valid from the end of its backward until the buffer's next one; empty without trainable
  // parameters. Any lane.
  std::span<float> sums(UnitId unit, std::optional<GradientBuffer> gradient) const;

  const LossSum& loss() const { return loss_; }
  // Returns the log-probabilities of the documents of an evaluation's batches with pairs, by
  // micro-batch.
  const std::vector<std::vector<double>>& document_logps() const { return document_logps_; }
  // Returns sums of the rank's micro-batches for router_statistics; empty if not collected.
  std::vector<double> router_sums() const;
  // Sets the corrections of the routers' choices, in place of the parameters' (RouterLoad). Not
  // while a pass runs.
  void set_router_corrections(std::vector<float> corrections);
  // Returns the corrections that were set, moved since then; empty: none were.
  std::vector<float> router_corrections() const;
  // Moves the corrections by the router sums of the step's ranks, if the model asks for it.
  void move_router_corrections(std::span<const double> sums);
  // Returns the next token's scores, fp32 [positions, vocabulary].
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
  // Makes the expert choices of all ranks known, before backward.
  void balance_routers();
  void forward_without_graph(UnitId unit);
  void forward_with_graph(UnitId unit);
  void backward_loss(UnitId unit, GradientSink& sink);
  void backward_unit(UnitId unit, int32_t micro_batch, GradientSink& sink);
  void run_autograd(UnitId unit, int32_t micro_batch, const SavedGraph& graph, GradientSink& sink);
  SavedGraph make_graph(UnitId unit, const Carry& in, const MicroBatch& batch);
  // Returns the batch for the unit; `filled` says whether forward has written its kept results.
  const MicroBatch& batch_of(UnitId unit, int32_t micro_batch, bool filled);
  GradientAccumulator* accumulator(UnitId unit, std::optional<GradientBuffer> gradient) const;
  // Returns the accumulator of the unit's own parameters.
  GradientAccumulator* target(UnitId unit) const;
  bool wants_grad_in(UnitId unit) const { return unit > backward_order_.back(); }
  UnitId last() const { return spec_->units.back().id; }
  static size_t index_of(UnitId unit) { return static_cast<size_t>(unit.value); }

  const Model* model_;
  const ModelSpec* spec_;
  UnitId first_kept_;  // first unit whose graphs are kept from forward to backward
  ParameterViews views_;
  CarryStore carry_;
  // By unit: one per buffer; one for a unit that owns_tied; none without trainable parameters.
  std::vector<SlotVector<GradientBuffer, std::unique_ptr<GradientAccumulator>>> accumulators_;
  std::vector<bool> owns_tied_;  // by unit
  std::vector<UnitId> backward_order_;
  std::vector<std::vector<SavedGraph>> saved_;  // [unit][micro-batch], recompute = none
  Mode mode_ = Mode::kTrain;
  std::optional<RouterLoad> routers_;  // empty: no statistics, balancing or set corrections
  double balance_ = 0.0;
  std::function<void(std::span<double>)> sum_over_ranks_;
  bool routers_balanced_ = false;
  std::vector<MicroBatch> batches_;
  double scale_ = 1.0;
  std::optional<GradientBuffer> gradient_;  // buffer of the unit that runs backward
  LossSum loss_;
  std::vector<TokenHits> hits_;  // by micro-batch, in an evaluation
  std::vector<std::vector<double>> document_logps_;
  at::Tensor positions_, logits_;
  std::vector<at::Tensor> logits_parts_;  // by piece of the head
};

}  // namespace longshore
