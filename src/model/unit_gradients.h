// unit_gradients: a unit's gradients by autograd, for the engine and for groups of units. Pure
// functions; compute thread only.
#pragma once

#include "model/unit.h"

namespace longshore {

// Forward made `out` from `parameters` and the leaves `in`. Given the gradient of `out`, this adds
// those of the parameters to the sink and returns those of `in`: undefined if nothing flows back,
// empty if not wanted. If a tensor of `out` is one of `in` itself, the unit's gradient is added to
// its `grad_out` in place and in that dtype. `grad_out` is consumed.
Carry autograd_backward(UnitParameters parameters, const Carry& in, const Carry& out,
                        const Carry& grad_out, bool want_grad_in, GradientSink& sink);

}  // namespace longshore
