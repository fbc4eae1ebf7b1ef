#include "offload/engine/probe/one_unit_model.h"

#include "base/errors.h"
#include "offload/schedule/pass_plan.h"

namespace longshore {

class OneUnitModel::Silent : public Unit {
 public:
  Carry forward(UnitParameters, const Carry&, const MicroBatch&) const override {
    LONGSHORE_CHECK(false) << "a stand-in is never run";
    return {};
  }
};

class OneUnitModel::SilentLoss : public LossUnit {
 public:
  Result loss(UnitParameters, const Carry&, const MicroBatch&) const override {
    LONGSHORE_CHECK(false) << "a stand-in is never run";
    return {};
  }
  Result loss_and_gradients(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            double, bool, GradientSink&) const override {
    return loss(parameters, in, batch);
  }
  at::Tensor logits(UnitParameters, const Carry&, const MicroBatch&,
                    const at::Tensor&) const override {
    LONGSHORE_CHECK(false) << "a stand-in is never run";
    return {};
  }
};

OneUnitModel::OneUnitModel(const Model& model, UnitId unit)
    : model_(model),
      real_(unit),
      before_(std::make_unique<Silent>()),
      behind_(std::make_unique<SilentLoss>()) {
  const ModelSpec& whole = model.spec();
  const UnitId first_with_gradient = execution_order(whole, Pass::kTrain).back();
  has_backward_ = unit >= first_with_gradient;
  UnitSpec probed = whole.unit(unit);
  if (unit.value > 0) {
    UnitSpec before;
    before.id = UnitId(0);
    before.name = "before " + probed.name;
    before.carry_out = whole.unit(UnitId(unit.value - 1)).carry_out;
    for (CarryTensorSpec& tensor : before.carry_out) tensor.passes.reset();
    for (ParamRef& ref : probed.tied) {
      before.parameters.push_back(whole.parameter(ref));
      ref = {before.id, static_cast<int32_t>(before.parameters.size()) - 1};
    }
    if (unit > first_with_gradient && !before.has_trainable()) {
      before.parameters.push_back({.name = "gradients flow below " + probed.name,
                                   .shape = {1},
                                   .frozen = false,
                                   .init = {}});
    }
    spec_.units.push_back(std::move(before));
  }
  probed_ = UnitId(static_cast<int32_t>(spec_.units.size()));
  probed.id = probed_;
  const bool loss = unit == whole.units.back().id;
  spec_.units.push_back(std::move(probed));
  if (!loss) {
    // The stand-in behind is the last unit; it reads the activation checkpoint.
    for (CarryTensorSpec& tensor : spec_.units.back().carry_out) tensor.running = false;
    UnitSpec behind;
    behind.id = UnitId(probed_.value + 1);
    behind.name = "behind " + whole.unit(unit).name;
    spec_.units.push_back(std::move(behind));
  }
  validate_model_spec(spec_);
}

const Unit& OneUnitModel::unit(UnitId id) const {
  return id == probed_ ? model_.unit(real_) : *before_;
}

const LossUnit& OneUnitModel::loss_unit() const {
  return probes_loss() ? model_.loss_unit() : *behind_;
}

std::string OneUnitModel::identity() const {
  std::string text = model_.code_of(real_).signature();
  if (text.empty()) return text;
  for (const UnitSpec& unit : spec_.units) {
    text += "\n" + std::to_string(unit.tied.size()) + " tied";
    for (const ParamSpec& parameter : unit.parameters) {
      text += parameter.frozen ? ", frozen" : ", trained";
      for (const int64_t dimension : parameter.shape) text += " " + std::to_string(dimension);
    }
    text += "; carry";
    for (const CarryTensorSpec& tensor : unit.carry_out) {
      text += " " + std::to_string(tensor.elements_per_position) + (tensor.wide ? " wide" : "") +
              (tensor.wide_gradient ? " summed" : "") + (tensor.running ? " running" : "") +
              (tensor.passes ? " passes " + std::to_string(*tensor.passes) : "");
    }
  }
  return text;
}

}  // namespace longshore
