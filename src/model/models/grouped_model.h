// GroupedModel: a model in which each group of another model's consecutive units is one unit. The
// numbers are equal: members run one after another, and backward recomputes each member's input.
// The run owns it; the other model must outlive it. Compute thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/parameters/unit_cut.h"
#include "model/units/unit.h"

namespace longshore {

class GroupedModel : public Model {
 public:
  // `groups` comes from group_units of the model's spec.
  GroupedModel(const Model* model, const std::vector<std::vector<UnitId>>& groups);
  ~GroupedModel() override;

  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override;
  RouterShape routers() const override { return model_->routers(); }
  std::optional<std::vector<LayerState>> layer_states(const StateUse& use) const override {
    return model_->layer_states(use);
  }
  std::optional<int64_t> restart_length() const override { return model_->restart_length(); }
  std::map<int64_t, int64_t> tokens_read_as() const override { return model_->tokens_read_as(); }

 private:
  const Model* model_;
  std::vector<std::vector<UnitId>> groups_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<Unit>> units_;  // null: the only member is used itself
  std::unique_ptr<LossUnit> loss_;            // null: the model's own loss unit is used
};

}  // namespace longshore
