// The recurrence of gated DeltaNet on a GPU.
#include <ATen/ATen.h>

#include <limits>

#include "model/mixers/delta_scan.h"
#include "model/ops/document_chunks.h"

namespace longshore {
namespace {

// The unit vectors of queries or keys, [chunks, key_heads, size, key_dim].
struct UnitVectors {
  at::Tensor values, factors;

  explicit UnitVectors(const at::Tensor& x)
      : factors(x.square().sum(-1, true).add_(kDeltaNormEps).rsqrt_()) {
    values = x * factors;
  }
  // Returns them once for each value head.
  at::Tensor shared(int64_t value_heads) const {
    const int64_t times = value_heads / values.size(1);
    if (times == 1) return values;
    const auto sizes = values.sizes();
    return values.unsqueeze(2)
        .expand({sizes[0], sizes[1], times, sizes[2], sizes[3]})
        .reshape({sizes[0], value_heads, sizes[2], sizes[3]});
  }
  // Returns the gradient of x from that of shared().
  at::Tensor gradient(at::Tensor grad) const {
    const auto sizes = values.sizes();
    if (grad.size(1) != sizes[1]) {
      grad = grad.view({sizes[0], sizes[1], -1, sizes[2], sizes[3]}).sum(2);
    }
    return (grad - values * (grad * values).sum(-1, true)).mul_(factors);
  }
};

// All of a block that does not depend on states. Names follow the paper: the corrected values are
// new_values - reading * state.
struct BlockMath {
  UnitVectors query_units, key_units;
  at::Tensor q, k, v, beta;  // [chunks, value_heads, size, ...]
  at::Tensor grown;          // decay from before the chunk to each position, [.., size, 1]
  at::Tensor left;           // decay from each position to the chunk's end
  at::Tensor whole;          // decay of the whole chunk, [.., 1, 1]
  at::Tensor pairs;          // decay between positions, [.., size, size]; 0 above the diagonal
  at::Tensor keys;           // products of keys, times `pairs`
  at::Tensor system;         // keys times beta; its strictly lower part is used
  at::Tensor solved;         // new_values and reading
  at::Tensor scores;         // products of queries and keys, times `pairs`

  BlockMath(const DeltaTerms& in, const BlockRows& rows)
      : query_units(rows.gather(in.mixed.narrow(1, 0, in.spec.key_width()), in.spec.key_heads)),
        key_units(rows.gather(in.mixed.narrow(1, in.spec.key_width(), in.spec.key_width()),
                              in.spec.key_heads)),
        q(query_units.shared(in.spec.value_heads) * in.scale()),
        k(key_units.shared(in.spec.value_heads)),
        v(rows.gather(in.mixed.narrow(1, 2 * in.spec.key_width(), in.spec.value_width()),
                      in.spec.value_heads)),
        beta(rows.gather(in.beta, in.spec.value_heads)) {
    const int64_t size = v.size(2);
    const at::Tensor ones = at::ones({size, size}, v.options());
    // A product instead of cumsum, which has no repeatable bits on a GPU.
    const at::Tensor sum = at::matmul(ones.tril(), rows.gather(in.decay, in.spec.value_heads));
    grown = sum.exp();
    const at::Tensor end = sum.narrow(2, size - 1, 1);
    left = (end - sum).exp_();
    whole = end.exp();
    // Above the diagonal the difference is positive, so it must not reach exp.
    pairs = (sum - turned(sum))
                .masked_fill_(ones.triu(1).to(at::kBool), -std::numeric_limits<float>::infinity())
                .exp_();
    keys = at::matmul(k, turned(k)).mul_(pairs);
    system = keys * beta;
    scores = at::matmul(q, turned(k)).mul_(pairs);
    solved = at::linalg_solve_triangular(system, at::cat({v * beta, k * (beta * grown)}, 3),
                                         /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  }
  at::Tensor new_values() const { return solved.narrow(3, 0, v.size(3)); }
  at::Tensor reading() const { return solved.narrow(3, v.size(3), k.size(3)); }
};

// The states before each chunk but a document's first, in the order of forward's chunks. They are
// not kept if the tensor is undefined.
class KeptStates {
 public:
  KeptStates(const at::Tensor& states, int64_t count) : states_(states), count_(count) {}
  // Returns the memory for forward's next state, which is like `values`.
  at::Tensor next(at::IntArrayRef sizes, const at::TensorOptions& options) {
    return states_.defined() ? states_[count_++] : at::empty(sizes, options);
  }
  // Returns the last state that was not taken yet.
  at::Tensor take() { return states_[--count_]; }

 private:
  at::Tensor states_;
  int64_t count_;
};

// Runs a block forward. `state` is that of the last chunk's end and passes to the next block.
// Returns the output.
at::Tensor block_forward(const ChunkBlock& block, const BlockMath& math, at::Tensor& state,
                         KeptStates& kept) {
  at::Tensor values = math.new_values();
  if (!block.reads_states() && !block.passes_state()) return at::matmul(math.scores, values);
  values = values.clone();
  const at::Tensor reading = math.reading(), writing = turned(math.k * math.left);
  const at::Tensor asking = math.q * math.grown;
  at::Tensor read = at::zeros_like(values);
  for (int64_t j = 0; j < std::ssize(block.chunks); ++j) {
    const Chunk& chunk = block.chunks[static_cast<size_t>(j)];
    at::Tensor corrected = values.select(0, j);
    if (!chunk.first) {
      corrected.baddbmm_(reading.select(0, j), state, 1.0, -1.0);
      read.select(0, j).copy_(at::matmul(asking.select(0, j), state));
    }
    if (chunk.last) continue;
    at::Tensor next = kept.next({math.k.size(1), math.k.size(3), math.v.size(3)}, values.options());
    at::bmm_out(next, writing.select(0, j), corrected);
    if (!chunk.first) next.addcmul_(state, math.whole.select(0, j));
    state = next;
  }
  return at::matmul(math.scores, values).add_(read);
}

// CarriedGradients: passes between the chunks of a block in backward.
struct CarriedGradients {
  at::Tensor states;  // before each chunk; undefined if all are zero
  at::Tensor ends;    // gradients of the states after the chunks; undefined if all are zero
  at::Tensor values;  // the corrected values
  at::Tensor grad;    // their gradient
};

// `grad` is the gradient of the block's output and `state_grad` that of the state at the last
// chunk's end. Takes the states of the chunks from `kept`.
CarriedGradients carry_back(const ChunkBlock& block, const BlockMath& math, const at::Tensor& grad,
                            at::Tensor& state_grad, KeptStates& kept) {
  const auto count = std::ssize(block.chunks);
  const std::vector<int64_t> sizes{count, math.k.size(1), math.k.size(3), math.v.size(3)};
  CarriedGradients out;
  out.values = math.new_values();
  out.grad = at::matmul(turned(math.scores), grad);
  const bool reads = block.reads_states(), passes = block.passes_state();
  if (reads) {
    out.states = at::zeros(sizes, grad.options());
    for (int64_t j = count - 1; j >= 0; --j) {
      if (block.chunks[static_cast<size_t>(j)].first) continue;
      out.states.select(0, j).copy_(kept.take());
    }
    out.values = out.values - at::matmul(math.reading(), out.states);
  }
  if (passes) out.ends = at::zeros(sizes, grad.options());
  if (!reads && !passes) return out;
  const at::Tensor reading = math.reading(), writing = math.k * math.left;
  const at::Tensor asking = math.q * math.grown;
  for (int64_t j = count - 1; j >= 0; --j) {
    const Chunk& chunk = block.chunks[static_cast<size_t>(j)];
    at::Tensor own = out.grad.select(0, j);
    if (!chunk.last) {
      out.ends.select(0, j).copy_(state_grad);
      own.baddbmm_(writing.select(0, j), state_grad);
    }
    if (chunk.first) continue;
    at::Tensor before = at::matmul(turned(asking.select(0, j)), grad.select(0, j));
    before.baddbmm_(turned(reading.select(0, j)), own, 1.0, -1.0);
    if (!chunk.last) before.addcmul_(state_grad, math.whole.select(0, j));
    state_grad = before;
  }
  return out;
}

// The gradients of what a block reads, [chunks, value_heads, size, ...].
struct BlockGradients {
  at::Tensor q, k, v, beta, decay;
};

// Sums of decay are in many factors exp(sum); each gives itself times its gradient to the sum.
BlockGradients block_backward(const BlockMath& math, const at::Tensor& grad,
                              const CarriedGradients& carried) {
  const int64_t width = math.v.size(3), size = math.v.size(2);
  const at::Tensor grad_reading = carried.states.defined()
                                      ? at::matmul(carried.grad, turned(carried.states)).neg_()
                                      : at::zeros_like(math.k);
  const at::Tensor sides = at::linalg_solve_triangular(
      turned(math.system), at::cat({carried.grad, grad_reading}, 3), /*upper=*/true,
      /*left=*/true, /*unitriangular=*/true);
  const at::Tensor by_values = sides.narrow(3, 0, width);
  const at::Tensor by_reading = sides.narrow(3, width, math.k.size(3));
  const at::Tensor by_system = at::matmul(sides, turned(math.solved)).neg_().tril_(-1);
  const at::Tensor by_scores = at::matmul(grad, turned(carried.values)).tril_();
  const at::Tensor asked = by_scores * math.pairs;
  const at::Tensor weighed = by_system * math.beta;
  const at::Tensor between = weighed * math.pairs;
  const at::Tensor rows_read = by_reading * (math.beta * math.grown);

  BlockGradients out;
  out.v = by_values * math.beta;
  out.q = at::matmul(asked, math.k);
  out.k = at::matmul(turned(asked), math.q).add_(rows_read);
  out.k.add_(at::matmul(between + turned(between), math.k));
  out.beta = (by_values * math.v).sum(-1, true);
  out.beta.add_((by_reading * math.k).sum(-1, true).mul_(math.grown));
  out.beta.add_((by_system * math.keys).sum(-1, true));
  // The diagonal would be added and taken away again, and leave its rounding.
  const at::Tensor pairs = (by_scores * math.scores).add_(weighed * math.keys).tril_(-1);
  at::Tensor sums = pairs.sum(-1, true).sub_(turned(pairs.sum(-2, true)));
  sums.add_((rows_read * math.k).sum(-1, true));
  if (carried.states.defined()) {
    const at::Tensor asked_states = at::matmul(grad, turned(carried.states)).mul_(math.grown);
    out.q.add_(asked_states);
    sums.add_((asked_states * math.q).sum(-1, true));
  }
  if (carried.ends.defined()) {
    const at::Tensor written = at::matmul(carried.values, turned(carried.ends)).mul_(math.left);
    out.k.add_(written);
    const at::Tensor of_rows = (written * math.k).sum(-1, true);
    sums.sub_(of_rows);
    at::Tensor end = sums.narrow(2, size - 1, 1);
    end.add_(of_rows.sum(2, true));
    if (carried.states.defined()) {
      end.add_((carried.states * carried.ends).sum({2, 3}, true).mul_(math.whole));
    }
  }
  out.decay = at::matmul(at::ones({size, size}, sums.options()).triu(), sums);
  return out;
}

}  // namespace

void delta_blocks_forward(const DeltaTerms& terms, const at::Tensor& out, const at::Tensor& kept) {
  KeptStates states(kept, 0);
  at::Tensor state;
  for (const ChunkBlock& block : make_blocks(terms.document_starts)) {
    const BlockRows rows(block, out.device());
    const BlockMath math(terms, rows);
    rows.scatter(out, block_forward(block, math, state, states));
  }
}

void delta_blocks_backward(const DeltaTerms& terms, const at::Tensor& grad, const at::Tensor& kept,
                           const DeltaGradients& gradients) {
  const DeltaSpec& spec = terms.spec;
  KeptStates states(kept, kept.defined() ? kept.size(0) : 0);
  const std::vector<ChunkBlock> blocks = make_blocks(terms.document_starts);
  at::Tensor state_grad;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const BlockRows rows(*block, grad.device());
    const BlockMath math(terms, rows);
    const at::Tensor block_grad = rows.gather(grad, spec.value_heads);
    const BlockGradients own =
        block_backward(math, block_grad, carry_back(*block, math, block_grad, state_grad, states));
    rows.scatter(gradients.mixed, {math.query_units.gradient(own.q).mul_(terms.scale()),
                                   math.key_units.gradient(own.k), own.v});
    rows.scatter(gradients.beta, own.beta);
    rows.scatter(gradients.decay, own.decay);
  }
}

}  // namespace longshore
