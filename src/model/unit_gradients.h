// A unit's gradients by autograd: what the engine and groups of units share. Pure functions;
// compute thread only.
#pragma once

#include "model/unit.h"

namespace longshore {

// From the gradient of `out`, which forward made of `parameters` and the leaves `in`, to those of
// the parameters, which go to the sink, and of `in`, which are returned: undefined where nothing
// flows back, empty where not wanted. A tensor of `out` that is one of `in` itself passes: the
// unit's part is added to its gradient in place, in that one's dtype. `grad_out` is used up.
Carry autograd_backward(UnitParameters parameters, const Carry& in, const Carry& out,
                        const Carry& grad_out, bool want_grad_in, GradientSink& sink);

}  // namespace longshore
