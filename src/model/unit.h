// Unit: a stateless function (parameters, carry) -> carry that the engine runs for one micro-batch
// at a time. It owns no parameters: they are views of a leased slot, handed in for the call.
// Implementations are immutable after construction and may be called from the compute thread only.
//
// Shapes: T = positions of the micro-batch, the documents end to end; there is no padding and no
// batch dimension. Attention never crosses a document's border.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "device/device_kind.h"
#include "model/router_load.h"
#include "shard/unit_spec.h"

namespace longshore {

// The inputs of one micro-batch, on the device.
struct MicroBatch {
  at::Tensor tokens;     // int64 [T]
  at::Tensor positions;  // int64 [T]; restart at 0 in every document
  at::Tensor targets;    // int64 [T]; the token to predict at each position, -100 = not trained
  // int64 [documents + 1]: where each document starts, and T at the end; strictly increasing.
  std::vector<int64_t> document_starts;
  // Where routers note what they choose; null: nobody asks.
  RouterLoad* routers = nullptr;
  // True while autograd recomputes a unit for its backward: the output's values were read in the
  // first forward and are not read again, so Unit::forward may build the graph and leave the values
  // of its last operations uncomputed. Unit::backward is never called with it.
  bool graph_only = false;

  int64_t position_count() const { return document_starts.empty() ? 0 : document_starts.back(); }
};

// What flows between units: one tensor [T, elements_per_position] for each CarryTensorSpec.
using Carry = std::vector<at::Tensor>;

// A unit's parameters, owned ones first, then tied ones; in the spec's shapes and the compute
// dtype.
using UnitParameters = std::span<const at::Tensor>;

// Where a unit's backward leaves parameter gradients. `parameter` counts owned ones first, then
// tied ones. Sums are fp32; a frozen parameter's gradient is dropped.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual bool wants(int32_t parameter) const = 0;
  // grad has the parameter's shape.
  virtual void add(int32_t parameter, const at::Tensor& grad) = 0;
  // Adds values[i] to row rows[i] of a matrix parameter. rows: int64 [N]; values: [N, columns].
  virtual void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) = 0;
  // Adds left^T right to a matrix parameter. left: [N, rows]; right: [N, columns].
  virtual void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) = 0;
  // Adds left^T right to one matrix of a stack of them.
  virtual void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                              const at::Tensor& right) = 0;
};

// A unit's attention by a GPU's own kernels: query heads, key heads and their size; none without.
struct AttentionHeads {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

// What units and the loss have in common.
class UnitCode {
 public:
  virtual ~UnitCode() = default;
  // The tensors that the unit reads and autograd differentiates, for views of the unit's slot that
  // stay the same for the whole run. An adaptor points its own tensors at the views here.
  virtual std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& views) const;

  // [Note: measured workspace] What a unit allocates is not modelled but measured: fsdp/probe runs
  // each distinct unit on its worst inputs before the plan is made. Those below tell it which.

  // What decides the unit's temporaries beside its parameters: units of the same signature, shapes
  // and carries take the same memory. Empty: there is no other unit like this one.
  virtual std::string signature() const { return {}; }
  // Lengths that documents of a micro-batch can have in its worst case, each at most `longest`:
  // however a micro-batch is split into documents, it takes no more than it does when all are as
  // long as one of these. A GPU's attention is an exception (offload/engine/probe/gpu_scratch.h).
  virtual std::vector<int64_t> worst_documents(int64_t longest, DeviceKind device) const;
  // Trained positions that it works on at one time on such a device, where that is not all of them:
  // with more of them it takes longer, but no more memory. 0: all.
  virtual int64_t positions_at_once(DeviceKind) const { return 0; }
  // Elements of its matrices that a position does not meet: experts that it did not choose.
  virtual int64_t idle_elements() const { return 0; }
  // Whether it notes into MicroBatch::routers.
  virtual bool has_router() const { return false; }
  // Sets what makes the unit take most where its input, which is zero else, has values that decide
  // it.
  virtual void make_worst(Carry&) const {}
  // For what a GPU's kernels take and nobody measured: its attention, and the bytes of each of
  // those positions.
  virtual AttentionHeads attention_heads() const { return {}; }
  virtual Bytes gpu_bytes_of_position(DType /*compute*/) const { return 0; }
};

class Unit : public UnitCode {
 public:
  // Differentiable with autograd in `parameters` and `in`. The first unit gets an empty `in`.
  virtual Carry forward(UnitParameters parameters, const Carry& in,
                        const MicroBatch& batch) const = 0;
  // True for a unit that computes its gradients itself (the embedding): the engine then calls
  // `backward` instead of autograd, and keeps no graph.
  virtual bool has_own_backward() const { return false; }
  // Returns the gradient of `in`, empty when the unit is the first.
  virtual Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                         const Carry& grad_out, GradientSink& sink) const;
  // Of a piece of the head: the scores of its tokens, as LossUnit::logits. Undefined: none.
  virtual at::Tensor logits(UnitParameters parameters, const Carry& in,
                            const at::Tensor& positions) const;
};

// Detached tensors that share the views' memory.
std::vector<at::Tensor> make_leaves(const std::vector<at::Tensor>& views);

// The last unit of a model: it ends in a sum of losses.
class LossUnit : public UnitCode {
 public:
  struct Result {
    double loss_sum = 0.0;  // over trained positions, not divided
    int64_t trained = 0;    // number of trained positions
    Carry grad_in;          // gradient of `in`; empty when not asked for
  };
  // Loss without gradients.
  virtual Result loss(UnitParameters parameters, const Carry& in,
                      const MicroBatch& batch) const = 0;
  // Loss and gradients in one go, never holding all logits. Gradients are of
  // scale * loss_sum. `want_grad_in` is false when no earlier unit needs a gradient.
  virtual Result loss_and_gradients(UnitParameters parameters, const Carry& in,
                                    const MicroBatch& batch, double scale, bool want_grad_in,
                                    GradientSink& sink) const = 0;
  // Scores of the next token, fp32 [rows, vocabulary], at the given positions (int64 [rows]).
  // Undefined where pieces before have them.
  virtual at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            const at::Tensor& positions) const = 0;
};

// A model the engine can run: the spec, and a function for every unit of it.
struct Model {
  virtual ~Model() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual const Unit& unit(UnitId id) const = 0;  // not the last one
  virtual const LossUnit& loss_unit() const = 0;  // the last one
  virtual RouterShape routers() const { return {}; }
  // What any unit says of itself, the last one too.
  const UnitCode& code_of(UnitId id) const {
    if (id == spec().units.back().id) return loss_unit();
    return unit(id);
  }
};

}  // namespace longshore
