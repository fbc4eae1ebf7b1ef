// GroupedModel: a model whose units in a row are gathered together: each group of another model's
// units is one unit of this one. Numbers are the same: members run one after another, forward, and
// backward from each member's recomputed input. Owned by the run; the other model must outlive it.
#pragma once

#include <memory>
#include <vector>

#include "model/unit.h"
#include "model/unit_groups.h"

namespace longshore {

class GroupedModel : public Model {
 public:
  // `groups` come from group_units of the model's spec.
  GroupedModel(const Model* model, const std::vector<std::vector<UnitId>>& groups);
  ~GroupedModel() override;

  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override;
  RouterShape routers() const override { return model_->routers(); }

 private:
  const Model* model_;
  std::vector<std::vector<UnitId>> groups_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<Unit>> units_;  // null: the group's only member serves
  std::unique_ptr<LossUnit> loss_;            // the same
};

}  // namespace longshore
