// WeightProducts: where backward of the ops adds weight gradients, each a product of two matrices,
// so that no gradient of a weight's size exists beside the sum. Bound by whoever runs autograd over
// a unit, for as long as that takes; asked by the ops' backward, on whatever thread autograd runs
// it. Weights that nobody bound have a gradient of their own, as autograd has it.
#pragma once

#include "model/unit.h"

namespace longshore {

class WeightProducts {
 public:
  // Products for `parameters`, a unit's leaves, go to the sink. No leaf is bound twice at a time.
  WeightProducts(UnitParameters parameters, GradientSink* sink);
  WeightProducts(const WeightProducts&) = delete;
  WeightProducts& operator=(const WeightProducts&) = delete;
  ~WeightProducts();

  // Adds left^T right to the gradient of `weight`, and says true, where that is bound.
  // left: [N, rows]; right: [N, columns].
  static bool add(const at::Tensor& weight, const at::Tensor& left, const at::Tensor& right);

 private:
  UnitParameters parameters_;
};

}  // namespace longshore
