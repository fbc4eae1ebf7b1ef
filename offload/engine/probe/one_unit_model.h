// OneUnitModel: a model cut down to one of its units, with stand-ins before and behind it, so that
// the engine's own UnitRunner runs that unit alone: the stand-in before owns what the unit borrows
// and says whether a gradient has to flow on, the one behind takes the unit's output.
// Owned by the probe; the model must outlive it.
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

  // The unit, by the name it has here.
  UnitId probed() const { return probed_; }
  bool probes_loss() const { return spec_.units.back().id == probed_; }
  bool has_backward() const { return has_backward_; }
  // Units of the same text take the same memory; empty where there is no other such unit.
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
