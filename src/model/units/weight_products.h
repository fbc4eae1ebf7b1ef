// WeightProducts: adds weight gradients, products of two matrices, to their sums in place, so that
// no other tensor of a weight's size exists. The code that runs autograd over a unit owns one for
// that time; the nodes of the unit's graph call add() on any thread of autograd. Gradients that do
// not go straight to a parameter of the unit stay with autograd.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/ops/graph_operation.h"
#include "model/units/unit.h"

namespace longshore {

class WeightProducts final : public ProductSums {
 public:
  // Gives itself to the nodes of the graph that ends at `roots`, which must outlive it.
  // `parameters` are the unit's leaves in this graph. No node may have sums already.
  WeightProducts(UnitParameters parameters, std::span<const at::Tensor> roots, GradientSink* sink);
  WeightProducts(const WeightProducts&) = delete;
  WeightProducts& operator=(const WeightProducts&) = delete;
  ~WeightProducts() override;

  bool add(const torch::autograd::Edge& edge, const at::Tensor& left,
           const at::Tensor& right) const override;

 private:
  GradientSink* sink_;
  std::unordered_map<torch::autograd::Edge, int32_t> parameters_;
  std::vector<GraphNode*> nodes_;
};

}  // namespace longshore
