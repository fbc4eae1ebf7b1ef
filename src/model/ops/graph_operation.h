// graph_operation: puts an operation that has its own backward into autograd's graph. The operation
// is a struct whose members are what its backward needs: the caller makes it, run_operation() calls
// its forward, and a node of the graph owns it until its backward, which runs once. Forward runs on
// the compute thread, backward on a thread of autograd, both without autograd.
//
// An operation has three functions:
//   at::Tensor or std::vector<at::Tensor> forward(...) returns new tensors and may set members;
//   std::vector<at::Tensor*> saved() returns the members that are inputs or results and that
//     backward reads, undefined ones too; autograd checks that nobody has written to them;
//   void backward(const std::vector<at::Tensor>& grads, InputGradients& gradients) gets the
//     gradients of the results and may overwrite and release members.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace longshore {

// The sums of one backward pass, to which products of two matrices are added in place.
class ProductSums {
 public:
  virtual ~ProductSums() = default;
  // Adds left^T right to the gradient that `edge` leads to. Returns false, and does nothing, if
  // there is no sum for it. `left` is [N, rows]; `right` is [N, columns].
  virtual bool add(const torch::autograd::Edge& edge, const at::Tensor& left,
                   const at::Tensor& right) const = 0;
};

// GraphNode: what the nodes of all operations share. Autograd's graph owns it.
class GraphNode : public torch::autograd::Node {
 public:
  explicit GraphNode(torch::autograd::edge_list&& inputs) : Node(std::move(inputs)) {}

  // The sums of the pass that is running; null: autograd gets every gradient.
  void set_sums(const ProductSums* sums) { sums_ = sums; }
  const ProductSums* sums() const { return sums_; }
  void release_variables() override { saved_.clear(); }

 protected:
  // Moves tensors of the operation to where autograd watches them, and back.
  void save(const std::vector<at::Tensor*>& tensors);
  void restore(const std::vector<at::Tensor*>& tensors);
  // Checks that a backward may run, and replaces undefined gradients of results by zeros.
  void begin_backward(bool has_operation, std::vector<at::Tensor>& grads) const;

 private:
  const ProductSums* sums_ = nullptr;
  std::vector<torch::autograd::SavedVariable> saved_;
};

// InputGradients: the gradients of an operation's inputs, in run_operation's order. Lives for one
// backward.
class InputGradients {
 public:
  explicit InputGradients(const GraphNode* node) : node_(node), gradients_(node->num_outputs()) {}

  // Returns false for an undefined input, too.
  bool wanted(size_t input) const { return node_->task_should_compute_output(input); }
  // One that is not wanted may stay undefined.
  at::Tensor& operator[](size_t input) { return gradients_.at(input); }
  // Adds left^T right to the gradient of an input, in the sum of the pass if that has one for it.
  void add_product(size_t input, const at::Tensor& left, const at::Tensor& right);
  std::vector<at::Tensor> take() { return std::move(gradients_); }

 private:
  const GraphNode* node_;
  std::vector<at::Tensor> gradients_;
};

template <typename Operation>
class OperationNode final : public GraphNode {
 public:
  OperationNode(torch::autograd::edge_list&& inputs, Operation&& operation)
      : GraphNode(std::move(inputs)), operation_(std::move(operation)) {}

  // Is called when the node is that of the results, because a node must not own its results.
  void save_tensors() { save(operation_->saved()); }
  void release_variables() override {
    operation_.reset();
    GraphNode::release_variables();
  }

 private:
  // The operation is a local variable here, so that it is freed whatever its backward throws.
  std::vector<at::Tensor> apply(std::vector<at::Tensor>&& grads) override {
    begin_backward(operation_.has_value(), grads);
    Operation operation = std::move(*operation_);
    operation_.reset();
    restore(operation.saved());
    InputGradients gradients(this);
    operation.backward(grads, gradients);
    return gradients.take();
  }

  std::optional<Operation> operation_;
};

// Returns the edges to the inputs if autograd records an operation on them.
std::optional<torch::autograd::edge_list> recorded_edges(at::TensorList inputs);
// Makes `node` that of a result.
void set_node(const at::Tensor& result, const std::shared_ptr<torch::autograd::Node>& node);
void set_node(const std::vector<at::Tensor>& results,
              const std::shared_ptr<torch::autograd::Node>& node);

// Returns operation.forward(arguments...). `inputs` are all tensors that get a gradient, undefined
// ones too.
template <typename Operation, typename... Arguments>
auto run_operation(Operation operation, at::TensorList inputs, const Arguments&... arguments) {
  std::optional<torch::autograd::edge_list> edges = recorded_edges(inputs);
  auto results = [&] {
    const at::NoGradGuard no_grad;
    return operation.forward(arguments...);
  }();
  if (edges) {
    using Node = OperationNode<Operation>;
    const std::shared_ptr<Node> node(new Node(std::move(*edges), std::move(operation)),
                                     torch::autograd::deleteNode);
    set_node(results, node);
    node->save_tensors();
  }
  return results;
}

}  // namespace longshore
