#include "model/unit.h"

#include "base/errors.h"

namespace longshore {

Carry Unit::backward(UnitParameters, const Carry&, const MicroBatch&, const Carry&,
                     GradSink&) const {
  LONGSHORE_CHECK(false) << "this unit's gradients come from autograd";
  return {};
}

}  // namespace longshore
