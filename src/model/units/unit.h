// Unit: a stateless function (parameters, carry) -> carry that the engine runs for one micro-batch
// at a time; LossUnit, the last one; Model, all of them; and what they take and give: MicroBatch,
// Carry, GradientSink, UnitTraits. A unit owns no parameters: the call gets views of a leased slot.
// Implementations are immutable after construction; only the compute thread calls them.
//
// T is the number of positions of the micro-batch: documents are concatenated, without padding or
// batch dimension. Attention never crosses a document's border.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/columns.h"
#include "base/dtype.h"
#include "device/device_kind.h"
#include "model/losses/loss.h"
#include "model/losses/token_hits.h"
#include "model/units/router_load.h"
#include "model/units/sequence_states.h"
#include "model/units/stored_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

// UnitResults: the memory in which a plan keeps the results of a unit's forward for its backward,
// one [T, elements_per_position] for each of UnitSpec::results; empty if it keeps none.
struct UnitResults {
  std::vector<at::Tensor> places = {};
  bool filled = false;  // forward has run, so that backward need not compute them again
};

// The inputs of one micro-batch, on the device.
struct MicroBatch {
  at::Tensor tokens;     // int64 [T]
  at::Tensor positions;  // int64 [T]; in every document from 0, or where `continued` says
  at::Tensor targets;    // int64 [T]; the token to predict at each position, -100 = not trained
  // int64 [T]: the random bits of each position from which dropout follows ([Note: dropout keys]).
  // Undefined except in training with dropout: nothing is dropped.
  at::Tensor dropout_keys = {};
  // int64 [documents + 1]: the start of each document, then T; strictly increasing.
  std::vector<int64_t> document_starts;
  // The run's loss; null: the weighted one over trained positions.
  std::shared_ptr<const Loss> loss = {};
  // The columns that stay in host memory (base/columns.h); null: there are none. The loss of each
  // trained position is multiplied by its weight. Copies of the batch share them, because those of
  // a teacher are large.
  std::shared_ptr<const ColumnValues> columns = {};
  // Returns them; all are empty if there are none.
  const ColumnValues& all_columns() const {
    static const ColumnValues kNone;
    return columns ? *columns : kNone;
  }
  // Returns one of them; empty if the batch does not have it.
  const std::vector<float>& column(ColumnId which) const { return all_columns()[which]; }
  template <ColumnId kColumn>
  const std::vector<ColumnValue<kColumn>>& column() const {
    return all_columns().get<kColumn>();
  }
  // Routers report their choices here, and take corrections that a run moves; null if neither.
  RouterLoad* routers = nullptr;
  // The head counts here how often the target has the highest score; null if that is not needed.
  TokenHits* hits = nullptr;
  // True while autograd recomputes a unit for its backward: the values of its output are not read
  // again, so Unit::forward may build the graph and leave its last operations uncomputed.
  // Unit::backward is never called with it.
  bool graph_only = false;
  UnitResults results = {};  // of the unit that runs
  // Decoding: the documents continue these sequences, one each, and mixers extend their states.
  // Null: each document is whole, and nothing is kept of it. Without autograd.
  const ContinuedSequences* continued = nullptr;

  int64_t position_count() const { return document_starts.empty() ? 0 : document_starts.back(); }
};

// The tensors between units: one [T, elements_per_position] for each CarryTensorSpec.
using Carry = std::vector<at::Tensor>;

// Receives the parameter gradients of a unit's backward. `parameter` counts owned ones first, then
// tied ones. Sums are fp32; a frozen parameter's gradient is dropped.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual bool wants(int32_t parameter) const = 0;
  // `grad` has the parameter's shape.
  virtual void add(int32_t parameter, const at::Tensor& grad) = 0;
  // Adds values[i] to row rows[i] of a matrix parameter. rows: int64 [N]; values: [N, columns].
  virtual void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) = 0;
  // Adds left^T right to a matrix parameter. left: [N, rows]; right: [N, columns].
  virtual void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) = 0;
  // Adds left^T right to one matrix of a stacked parameter.
  virtual void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                              const at::Tensor& right) = 0;
};

// The head counts and size of attention that uses GPU kernels; all 0 without such attention.
struct AttentionHeads {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

// Returns the name and the numbers, separated by spaces: a signature or the beginning of one.
template <typename... Numbers>
std::string signature_text(std::string name, Numbers... numbers) {
  ((name += " " + std::to_string(static_cast<int64_t>(numbers))), ...);
  return name;
}

// For which run the traits of a unit are asked.
struct UnitUse {
  int64_t longest_document = 1;  // tokens
  DeviceKind device = DeviceKind::kCpu;
  DType compute = DType::kBF16;
};

// UnitTraits: the memory and the work of a unit that its spec does not say. Plain values.
//
// [Note: measured workspace] A unit's allocations are measured, not modelled: offload/engine/probe
// runs each distinct unit on its worst inputs before the plan is made. `signature`, `documents` and
// `worst_input` name both.
struct UnitTraits {
  // Identifies the temporaries beside parameters: units with equal signature, shapes and carries
  // use the same memory. An empty text means that no other unit is like this one.
  std::string signature = {};
  // Document lengths, each at most the longest: no split of a micro-batch takes more memory than
  // the worst of these lengths used for all documents. Attention on a GPU is an exception
  // (offload/engine/probe/measured_workspace.h).
  std::vector<int64_t> documents;
  // The values of columns of an otherwise zero input, [T, columns] each, that make the unit use the
  // most memory.
  struct Column {
    size_t tensor = 0;  // of the carry
    int64_t column = 0;
    double value = 0.0;
  };
  std::vector<Column> worst_input = {};
  // The most trained positions that the unit handles at a time on this device; more of them take
  // longer but no more memory. 0 means all.
  int64_t positions_at_once = 0;
  // The matrix elements that a position does not use: those of experts it did not choose.
  int64_t idle_elements = 0;
  // The multiplications of a position in products of activations, other than attention's
  // (attention_width), whose number grows with the document.
  int64_t activation_elements = 0;
  int64_t attention_width = 0;  // heads times their size, summed over all attentions of the unit
  int64_t teacher_tokens = 0;   // the width of the teacher's columns that the unit reads
  bool has_router = false;      // the unit reports to MicroBatch::routers
  // GPU kernels allocate scratch that is not measured; these are its sizes: the largest attention,
  // and the bytes of one of positions_at_once.
  AttentionHeads attention = {};
  Bytes gpu_bytes_of_position = 0;

  // Sets the attention, and its width, which is that of its heads.
  void set_attention(const AttentionHeads& heads) {
    attention = heads;
    attention_width = heads.heads * heads.head_dim;
  }
};

// The interface that Unit and LossUnit share.
class UnitCode {
 public:
  virtual ~UnitCode() = default;
  // Returns the tensors that the unit reads and autograd differentiates. `views` of the unit's slot
  // stay the same for the whole run; an adaptor points its own tensors at them.
  virtual std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& views) const;
  // Without an override a unit is like no other, and its memory may depend on documents.
  virtual UnitTraits traits(const UnitUse& use) const {
    return {.documents = {use.longest_document, 1}};
  }
  // Returns what decoding keeps of a sequence for the layers of this unit.
  virtual std::vector<LayerState> layer_states(const StateUse&) const { return {}; }
};

class Unit : public UnitCode {
 public:
  // Below, `parameters` are the owned ones, then the tied ones, in the spec's shapes and the
  // compute dtype. Autograd differentiates this in `parameters` and `in`. The first unit gets an
  // empty `in`.
  virtual Carry forward(UnitParameters parameters, const Carry& in,
                        const MicroBatch& batch) const = 0;
  // Returns true if the unit computes its gradients itself (such as the embedding): the engine then
  // calls `backward` instead of autograd and keeps no graph.
  virtual bool has_own_backward() const { return false; }
  // Returns the gradient of `in`; empty if the unit is the first.
  virtual Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                         const Carry& grad_out, GradientSink& sink) const;
  // Returns the scores of a head piece's tokens, as LossUnit::logits; undefined for other units.
  virtual at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            const at::Tensor& positions) const;
};

// Returns detached tensors that share the views' memory.
std::vector<at::Tensor> make_leaves(const std::vector<at::Tensor>& views);

// The last unit of a model; it computes the sum of losses. Those of decoders compute the batch's
// loss.
class LossUnit : public UnitCode {
 public:
  struct Result : LossResult {
    Carry grad_in = {};  // gradient of `in`; empty unless requested
  };
  // Computes the loss without gradients.
  virtual Result loss(UnitParameters parameters, const Carry& in,
                      const MicroBatch& batch) const = 0;
  // Computes the loss and the gradients of scale * loss; a head never holds the logits of all
  // positions. `want_grad_in` is false if no earlier unit needs a gradient.
  virtual Result loss_and_gradients(UnitParameters parameters, const Carry& in,
                                    const MicroBatch& batch, double scale, bool want_grad_in,
                                    GradientSink& sink) const = 0;
  // Returns the scores of the next token, fp32 [rows, vocabulary], at `positions` (int64 [rows]).
  // In the last piece of a cut head the vocabulary is the piece's.
  virtual at::Tensor logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            const at::Tensor& positions) const = 0;
};

// A model that the engine can run: the spec, and a function for every unit.
struct Model {
  virtual ~Model() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual const Unit& unit(UnitId id) const = 0;  // for all units but the last
  virtual const LossUnit& loss_unit() const = 0;  // the last unit
  virtual RouterShape routers() const { return {}; }
  // Returns the tokens whose embedding is that of another token.
  virtual std::map<int64_t, int64_t> tokens_read_as() const { return {}; }
  // Returns what decoding keeps of a sequence; empty: the units cannot continue sequences
  // (MicroBatch::continued).
  virtual std::optional<std::vector<LayerState>> layer_states(const StateUse&) const { return {}; }
  // Returns the most positions of a text whose rotations stay as they are when it grows. A sequence
  // that was computed as a text of at most this length, and becomes longer, begins again: its whole
  // text is computed from its first token, with before = 0 and ContinuedSequences::lengths above
  // this (longrope). Empty: every sequence goes on.
  virtual std::optional<int64_t> restart_length() const { return {}; }
  // Returns the shared interface of any unit, including the last.
  const UnitCode& code_of(UnitId id) const {
    if (id == spec().units.back().id) return loss_unit();
    return unit(id);
  }
};

// unit_gradients: a unit's gradients by autograd, for the engine and for groups of units. Pure
// functions; compute thread only.

// Forward made `out` from `parameters` and the leaves `in`. Given the gradient of `out`, this adds
// those of the parameters to the sink and returns those of `in`: undefined if nothing flows back,
// empty if not wanted. If a tensor of `out` is one of `in` itself, the unit's gradient is added to
// its `grad_out` in place and in that dtype. `grad_out` is consumed.
Carry autograd_backward(UnitParameters parameters, const Carry& in, const Carry& out,
                        const Carry& grad_out, bool want_grad_in, GradientSink& sink);

// MappedSink: a GradientSink for a unit inside a larger unit; it maps the inner parameter indices
// to the outer ones. Lives for one call; compute thread only.

class MappedSink final : public GradientSink {
 public:
  // Both arguments must outlive the sink.
  MappedSink(GradientSink* sink, const std::vector<int32_t>* parameters)
      : sink_(sink), parameters_(parameters) {}

  bool wants(int32_t parameter) const override { return sink_->wants(index(parameter)); }
  void add(int32_t parameter, const at::Tensor& grad) override {
    sink_->add(index(parameter), grad);
  }
  void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) override {
    sink_->add_rows(index(parameter), rows, values);
  }
  void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) override {
    sink_->add_product(index(parameter), left, right);
  }
  void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                      const at::Tensor& right) override {
    sink_->add_product_at(index(parameter), matrix, left, right);
  }

 private:
  int32_t index(int32_t parameter) const { return parameters_->at(static_cast<size_t>(parameter)); }

  GradientSink* sink_;
  const std::vector<int32_t>* parameters_;
};

}  // namespace longshore
