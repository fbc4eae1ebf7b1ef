// PackedModel: a model whose frozen matrices are stored in NF4 (base/nf4.h), as QLoRA does. Tiers,
// slots and transfers have the packed bytes, 4.13 bits a value. A unit unpacks its matrices to
// temporaries of the compute dtype each time it runs, and computes what the unpacked model computes
// from these values, to the bit. The run owns it; the other model must outlive it. Compute thread
// only, except for spec().
#pragma once

#include <memory>
#include <vector>

#include "base/dtype.h"
#include "model/unit.h"

namespace longshore {

// Returns the specification with the matrices packed that a PackedModel packs: frozen ones of
// blocks, of linear layers. A packed one has its name, and as many elements of `compute` as hold
// it.
ModelSpec pack_model_spec(const ModelSpec& model, DType compute);

class PackedModel : public Model {
 public:
  PackedModel(const Model* model, DType compute);
  ~PackedModel() override;

  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override { return model_->loss_unit(); }
  RouterShape routers() const override { return model_->routers(); }

 private:
  const Model* model_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<Unit>> units_;  // null: the model's own unit is used
};

}  // namespace longshore
