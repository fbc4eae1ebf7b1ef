// OneUnitModel: a model reduced to one unit with stand-ins before and behind it, so that the
// engine's UnitRunner runs it alone. The stand-in before owns the unit's tied parameters and
// decides whether a gradient flows on; the one behind takes the output. Owned by the probe; the
// model outlives it.
#pragma once

#include <memory>
#include <string>

#include "model/unit.h"

namespace longshore {

class OneUnitModel : public Model {
 public:
  OneUnitModel(const Model& model, UnitId unit);

  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override;
  RouterShape routers() const override { return model_.routers(); }

  // Returns the id of the probed unit in this model.
  UnitId probed() const { return probed_; }
  bool probes_loss() const { return spec_.units.back().id == probed_; }
  bool has_backward() const { return has_backward_; }
  // Units with equal text need equal memory; empty (code without a signature): the unit is unique.
  std::string identity() const;

 private:
  class Silent;
  class SilentLoss;

  const Model& model_;
  UnitId real_;
  UnitId probed_;
  bool has_backward_ = false;
  ModelSpec spec_;
  std::unique_ptr<Unit> before_;
  std::unique_ptr<LossUnit> behind_;
};

}  // namespace longshore
