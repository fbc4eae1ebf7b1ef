#include "model/ops/graph_operation.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/errors.h"

namespace longshore {

void GraphNode::save(const std::vector<at::Tensor*>& tensors) {
  for (at::Tensor* tensor : tensors) {
    const bool is_result = tensor->defined() && tensor->grad_fn().get() == this;
    saved_.emplace_back(*tensor, is_result);
    tensor->reset();
  }
}

void GraphNode::restore(const std::vector<at::Tensor*>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = saved_.at(i).unpack(getptr());
  saved_.clear();
}

void GraphNode::begin_backward(bool has_operation, std::vector<at::Tensor>& grads) const {
  TORCH_CHECK(has_operation, torch::autograd::ERR_BACKWARD_TWICE);
  LONGSHORE_CHECK(!at::GradMode::is_enabled()) << "a gradient of a gradient";
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) grads[i] = input_metadata(i).zeros_like();
  }
}

void InputGradients::add_product(size_t input, const at::Tensor& left, const at::Tensor& right) {
  const ProductSums* sums = node_->sums();
  if (sums != nullptr && sums->add(node_->next_edge(input), left, right)) return;
  const at::Tensor product = at::mm(left.t(), right);
  at::Tensor& gradient = gradients_.at(input);
  gradient = gradient.defined() ? gradient.add(product) : product;
}

std::optional<torch::autograd::edge_list> recorded_edges(at::TensorList inputs) {
  const auto recorded = [](const at::Tensor& x) { return x.defined() && x.requires_grad(); };
  if (!at::GradMode::is_enabled() || std::ranges::none_of(inputs, recorded)) return std::nullopt;
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.defined() ? torch::autograd::impl::gradient_edge(input)
                                    : torch::autograd::Edge());
  }
  return edges;
}

void set_node(const at::Tensor& result, const std::shared_ptr<torch::autograd::Node>& node) {
  torch::autograd::impl::set_gradient_edge(result, {node, node->add_input_metadata(result)});
}

void set_node(const std::vector<at::Tensor>& results,
              const std::shared_ptr<torch::autograd::Node>& node) {
  for (const at::Tensor& result : results) set_node(result, node);
}

}  // namespace longshore
