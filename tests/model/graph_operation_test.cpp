// A node of the graph owns its operation from forward to backward, and no longer.
#include "model/ops/graph_operation.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "base/errors.h"
#include "tests/model/allocation_meter.h"

namespace longshore {
namespace {

using torch::autograd::grad;

// The square of x plus an addend, which saves its input, its result and a member without a graph.
struct Square {
  at::Tensor x, addend;
  std::shared_ptr<int> alive;  // counts the operations that exist
  bool throws = false;
  at::Tensor twice = {}, result = {};

  at::Tensor forward() {
    twice = x * 2.0;
    return result = x * x + (addend.defined() ? addend : at::zeros({}));
  }
  std::vector<at::Tensor*> saved() { return {&x, &addend, &result}; }
  void backward(const std::vector<at::Tensor>& grads, InputGradients& gradients) {
    if (throws) throw std::runtime_error("no memory");
    EXPECT_TRUE(at::equal(result, addend.defined() ? x * x + addend : x * x));
    EXPECT_EQ(gradients.wanted(1), addend.defined() && addend.requires_grad());
    gradients[0] = grads[0] * twice;
    if (gradients.wanted(1)) gradients[1] = grads[0];
  }
};

at::Tensor square(const at::Tensor& x, const std::shared_ptr<int>& alive,
                  const at::Tensor& addend = {}, bool throws = false) {
  return run_operation(Square{x, addend, alive, throws}, {x, addend});
}

at::Tensor leaf() {
  return at::arange(1, 5, at::kFloat).requires_grad_(true);
}

// Goal: gradients are the operation's, for inputs that are undefined, frozen or trained.
TEST(GraphOperation, GivesTheGradientsThatAreWanted) {
  const auto alive = std::make_shared<int>();
  const at::Tensor x = leaf(), addend = leaf();
  EXPECT_TRUE(at::equal(grad({square(x, alive).sum()}, {x})[0], x * 2.0));
  EXPECT_TRUE(at::equal(grad({square(x, alive, addend.detach()).sum()}, {x})[0], x * 2.0));
  const auto both = grad({square(x, alive, addend).sum()}, {x, addend});
  EXPECT_TRUE(at::equal(both[0], x * 2.0) && at::equal(both[1], at::ones({4})));
}

// Goal: without autograd, and for frozen inputs, there is no graph and nothing is kept.
TEST(GraphOperation, KeepsNothingThatIsNotRecorded) {
  const auto alive = std::make_shared<int>();
  const at::Tensor frozen = square(leaf().detach(), alive);
  EXPECT_FALSE(frozen.requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(square(leaf(), alive).requires_grad());
  EXPECT_EQ(alive.use_count(), 1);
}

// Goal: what an operation holds is freed by its backward though the graph lives on, by the end of
// a graph that never ran, and when backward throws, although it saves its own result.
TEST(GraphOperation, IsFreedByBackwardOrWithItsGraph) {
  const auto alive = std::make_shared<int>();
  const at::Tensor x = leaf();
  const at::Tensor out = square(x, alive);
  EXPECT_EQ(alive.use_count(), 2);
  grad({out.sum()}, {x});
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_THROW(grad({out.sum()}, {x}), c10::Error) << "the operation is gone";
  square(x, alive);
  EXPECT_EQ(alive.use_count(), 1);
  const AllocationMeter meter;
  EXPECT_THROW(grad({square(x, alive, {}, /*throws=*/true).sum()}, {x}), std::runtime_error);
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_EQ(meter.live(), 0);
}

// Goal: backward does not read an input or a result that was written to after forward.
TEST(GraphOperation, RefusesSavedTensorsThatWereWrittenTo) {
  const auto alive = std::make_shared<int>();
  const at::Tensor leaf_x = leaf();
  const at::Tensor x = leaf_x * 1.0;
  const at::Tensor of_input = square(x, alive).sum();
  x.detach().add_(1.0);
  EXPECT_THROW(grad({of_input}, {leaf_x}), c10::Error);
  const at::Tensor result = square(leaf_x, alive);
  result.detach().add_(1.0);
  EXPECT_THROW(grad({result.sum()}, {leaf_x}), c10::Error);
}

// Goal: a gradient of a gradient is refused, not wrong.
TEST(GraphOperation, HasNoSecondDerivative) {
  const auto alive = std::make_shared<int>();
  const at::Tensor x = leaf();
  EXPECT_THROW(grad({square(x, alive).sum()}, {x}, {}, /*retain_graph=*/true,
                    /*create_graph=*/true),
               CheckFailure);
}

}  // namespace
}  // namespace longshore
