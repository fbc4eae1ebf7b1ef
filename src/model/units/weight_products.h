// WeightProducts: adds weight gradients, products of two matrices, to their sums in place, so that
// no other tensor of a weight's size exists. The code that runs autograd over a unit owns one for
// that time; the ops' backward calls add() on any thread of autograd. Weights that are not bound
// get a gradient from autograd as usual.
#pragma once

#include "model/units/unit.h"

namespace longshore {

class WeightProducts {
 public:
  // Binds a unit's leaves `parameters` to the sink. No leaf may be bound twice at a time.
  WeightProducts(UnitParameters parameters, GradientSink* sink);
  WeightProducts(const WeightProducts&) = delete;
  WeightProducts& operator=(const WeightProducts&) = delete;
  ~WeightProducts();

  // Adds left^T right to the gradient of `weight` and returns true if `weight` is bound. `left` is
  // [N, rows]; `right` is [N, columns].
  static bool add(const at::Tensor& weight, const at::Tensor& left, const at::Tensor& right);

 private:
  UnitParameters parameters_;
};

}  // namespace longshore
