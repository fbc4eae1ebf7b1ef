// layer_inputs: the units that make each layer's own input (Gemma 4 E2B, E4B) from the tokens and
// their embedding e, for all layers at once: (norm(projection(e) / sqrt(hidden)) + sqrt(width) *
// table[token]) / sqrt(2). Blocks read their part of it. DecoderModel builds them; they are
// immutable. Compute thread only.
//
// [Note: two units for the layers' inputs] The table is larger than all other parameters of E2B
// together. Its unit looks up rows and needs no parameter in backward, so it is fetched once a
// step, like the embedding, and may be cut by rows. What it returns enters a sum, so the next
// unit's backward does not need its values, and no checkpoint keeps them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/arch_spec.h"
#include "model/module_index.h"
#include "model/unit.h"
#include "model/unit_cut.h"

namespace longshore {

// The table's part of the inputs, or that of the tokens whose rows are in a piece of the table.
// Carry in: the embedding, and behind the first piece the sum so far. Carry out: both.
class InputTableUnit : public Unit {
 public:
  InputTableUnit(const ArchSpec& arch, const TableRows& rows);
  std::string signature() const override;
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override;

 private:
  TableRows rows_;
  double scale_;
};

// Adds the part that comes from the embedding.
class LayerInputsUnit : public Unit {
 public:
  explicit LayerInputsUnit(const ArchSpec& arch);
  std::string signature() const override;
  std::vector<int64_t> worst_documents(int64_t longest, DeviceKind) const override {
    return {longest};
  }
  Carry forward(UnitParameters parameters, const Carry& in, const MicroBatch& batch) const override;

 private:
  ModuleIndex index_;
  NormKind norm_;
  double eps_;
  double scale_;  // of the projection
  bool transposed_, drops_;
};

}  // namespace longshore
