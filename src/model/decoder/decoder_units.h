// decoder_units: the embedding and the block of every decoder family (EmbeddingUnit, DecoderBlock),
// what pieces of the embedding share with the whole, and the functions that make the other units.
// DecoderModel builds them; they are immutable. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/families/families.h"
#include "model/mixers/mixer.h"
#include "model/parameters/model_spec.h"
#include "model/parameters/unit_cut.h"
#include "model/units/differentiable_ops.h"
#include "model/units/linear.h"
#include "model/units/module_index.h"
#include "model/units/unit.h"

namespace longshore {

// Returns the factor of embedding rows; `rounded` rounds it to the dtype of `like`.
double embedding_scale_for(double scale, bool rounded, const at::Tensor& like);

// Returns the epsilon of the embedding's norm if the family has one.
std::optional<double> embedding_norm_eps(const ArchSpec& arch);
// Returns rows divided by their root mean square, and the gradient of that.
at::Tensor normed_rows(const at::Tensor& rows, double eps);
at::Tensor normed_rows_backward(const at::Tensor& grad, const at::Tensor& rows, double eps);

// Returns whether each id is among the rows, [N] bool, and its row, 0 if it is not.
std::pair<at::Tensor, at::Tensor> find_rows(const at::Tensor& ids, const TableRows& rows);
// Returns the looked-up `values` [N, width] where `inside`; elsewhere what earlier pieces have put
// there, which the carry `in` has at `place`, and zeros in the first piece. May overwrite `values`.
at::Tensor joined_rows(at::Tensor values, const at::Tensor& inside, const TableRows& rows,
                       const Carry& in, size_t place);
// Adds the gradients `values` [N, width] to rows `local` of the unit's first parameter. Tokens of
// other pieces map to row 0, so their values are zeroed in place.
void add_rows_inside(at::Tensor values, const at::Tensor& inside, const at::Tensor& local,
                     GradientSink& sink);

// Looks up token rows, adds those of an adapter if there is one (with DoRA each column is then
// multiplied by its magnitude / its norm in the whole table), scales or normalises the sum if the
// family does, and adds learned positions if it has them. No family scales and normalises.
class EmbeddingUnit : public Unit {
 public:
  explicit EmbeddingUnit(const ArchSpec& arch);
  UnitTraits traits(const UnitUse& use) const override;
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;

 private:
  // Returns the table with its adapter. With DoRA it reads all of it for its norms.
  Linear table(UnitParameters parameters, const MicroBatch& batch) const;

  ModuleIndex index_;
  double scale_;
  bool scale_rounded_;
  std::optional<double> norm_eps_;
};

// h = x + mixer(norm(x)); y = h + mlp(norm(h)). Depending on the family, norms come after the
// branches or on both sides, and branches are scaled; or both branches read one norm of x. A unit
// may also be one of the two halves; that norm then passes from one to the other. Keys and values
// that later layers read are handed on (block_carry.h); a layer may read those of an earlier one.
class DecoderBlock : public Unit {
 public:
  DecoderBlock(const ArchSpec& arch, int64_t layer, BlockPart part = BlockPart::kWhole);
  UnitTraits traits(const UnitUse& use) const override;
  std::vector<LayerState> layer_states(const StateUse& use) const override;
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;

 private:
  // Returns the carry out: x, and what block_carry names, from the carry in or `own`.
  Carry handed_on(at::Tensor x, const Carry& in, const KeysValues& own) const;
  // Returns no weight if the family lacks this norm.
  NormWeights norm_weights(UnitParameters parameters, Module module) const;
  // Returns x itself if the family lacks this norm.
  at::Tensor norm(UnitParameters parameters, Module module, const at::Tensor& x) const;
  // Returns x + residual scale * post_norm(branch), times `factor` if that is defined. `values`
  // says whether the result is read.
  at::Tensor add_to(const at::Tensor& x, UnitParameters parameters, Module post_norm,
                    at::Tensor branch, Values values, at::Tensor factor = {}) const;
  // Returns whether the branch's values are read: always if a post norm's backward reads them.
  Values branch_values(Module post_norm, Values sum) const;
  // Returns x + mixer(norm(x)); `values` says whether it is read.
  at::Tensor add_mixed(const at::Tensor& x, const at::Tensor& input, UnitParameters parameters,
                       const MicroBatch& batch, Values values, KeysValues& keys) const;
  at::Tensor mlp(UnitParameters parameters, const at::Tensor& x, const MicroBatch& batch,
                 Values values) const;
  // Returns the product that the layer's own input adds to x; `inputs` are those of all layers.
  at::Tensor gated_input(UnitParameters parameters, const at::Tensor& x, const at::Tensor& inputs,
                         const MicroBatch& batch, Values values) const;

  ArchSpec arch_;   // with the sizes of the layer
  int64_t number_;  // of the layer
  LayerSpec layer_;
  BlockPart part_;
  std::vector<CarryTensorSpec> carry_out_;
  bool shares_keys_ = false;  // reads another layer's keys and values, or others read its own
  size_t keys_place_ = 0;     // of the keys in the carry in, if it reads another layer's
  // The first results of the sum between the halves and of the MLP (block_results).
  size_t middle_result_ = 0, mlp_result_ = 0;
  ModuleIndex index_;
  std::unique_ptr<Mixer> mixer_;  // null in a unit without it
};

// The units below are each in the file that is named after it. The embedding, the table of the
// layers' inputs and the head may be cut by rows, so that no unit is as large as the vocabulary.
std::unique_ptr<Unit> make_embedding_piece(const ArchSpec& arch, const TableRows& rows);
std::unique_ptr<Unit> make_input_table(const ArchSpec& arch, const TableRows& rows);
std::unique_ptr<Unit> make_layer_inputs(const ArchSpec& arch);
std::unique_ptr<Unit> make_head_piece(const ArchSpec& arch, const TableRows& rows);
// The last of at least two pieces; it computes the loss.
std::unique_ptr<LossUnit> make_head_loss(const ArchSpec& arch, const TableRows& rows);

}  // namespace longshore
