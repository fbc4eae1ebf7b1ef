// PackedModel: a model whose frozen matrices are stored packed (base/packed_format.h): in NF4, as
// QLoRA does, or in fp8. Tiers, slots and transfers have the packed bytes. Each product of a unit
// unpacks its matrix to a temporary of the compute dtype, and computes what the unpacked model
// computes from these values, to the bit. The run owns it; the other model must outlive it.
// Compute thread only, except for spec().
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/packed_format.h"
#include "model/units/unit.h"

namespace longshore {

// How a model's matrices are packed.
struct Packing {
  PackedFormat format = PackedFormat::kNf4;
  DType compute = DType::kF32;  // the dtype of the values that units compute with
  // The names of the parameters that may be packed; nullopt: any.
  std::optional<std::set<std::string>> only = {};
};

// Returns the specification with the matrices packed that a PackedModel packs: frozen ones of
// blocks, of linear layers and experts. A packed one has its name, shape and storage type.
ModelSpec pack_model_spec(const ModelSpec& model, const Packing& packing);

class PackedModel : public Model {
 public:
  PackedModel(const Model* model, const Packing& packing);
  ~PackedModel() override;

  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override { return model_->loss_unit(); }
  RouterShape routers() const override { return model_->routers(); }
  std::optional<std::vector<LayerState>> layer_states(const StateUse& use) const override {
    return model_->layer_states(use);
  }
  std::optional<int64_t> restart_length() const override { return model_->restart_length(); }
  std::map<int64_t, int64_t> tokens_read_as() const override { return model_->tokens_read_as(); }

 private:
  const Model* model_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<Unit>> units_;  // null: the model's own unit is used
};

}  // namespace longshore
