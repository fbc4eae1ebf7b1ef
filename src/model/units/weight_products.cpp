#include "model/units/weight_products.h"

#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "base/errors.h"

namespace longshore {
namespace {

using torch::autograd::Node;

// Returns the operations' nodes in the graph that ends at `roots`.
std::vector<GraphNode*> nodes_of(std::span<const at::Tensor> roots) {
  std::vector<GraphNode*> nodes;
  std::vector<Node*> open;
  std::unordered_set<Node*> met;
  const auto meet = [&](Node* node) {
    if (node != nullptr && met.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& root : roots) meet(root.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (auto* own = dynamic_cast<GraphNode*>(node)) nodes.push_back(own);
    for (const torch::autograd::Edge& edge : node->next_edges()) meet(edge.function.get());
  }
  return nodes;
}

}  // namespace

WeightProducts::WeightProducts(UnitParameters parameters, std::span<const at::Tensor> roots,
                               GradientSink* sink)
    : sink_(sink), nodes_(nodes_of(roots)) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& leaf = parameters.stored()[i];
    if (!leaf.requires_grad()) continue;
    parameters_[torch::autograd::impl::gradient_edge(leaf)] = static_cast<int32_t>(i);
  }
  for (const GraphNode* node : nodes_) {
    LONGSHORE_CHECK(node->sums() == nullptr) << "another pass runs over this graph";
  }
  for (GraphNode* node : nodes_) node->set_sums(this);
}

WeightProducts::~WeightProducts() {
  for (GraphNode* node : nodes_) node->set_sums(nullptr);
}

bool WeightProducts::add(const torch::autograd::Edge& edge, const at::Tensor& left,
                         const at::Tensor& right) const {
  const auto found = parameters_.find(edge);
  if (found == parameters_.end()) return false;
  sink_->add_product(found->second, left, right);
  return true;
}

}  // namespace longshore
