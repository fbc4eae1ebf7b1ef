#include "model/mixers/mamba_scan.h"

#include <limits>
#include <utility>

#include "model/ops/document_chunks.h"
#include "model/ops/graph_operation.h"
#include "model/units/linear.h"

namespace longshore {
namespace {

// The step and the decay of each position and head, fp32 [T, heads].
struct MambaGates {
  at::Tensor shifted, raw, step, factor, decay;

  MambaGates(const MambaInputs& in, double least)
      : shifted(in.steps.to(at::kFloat) + in.offset.to(at::kFloat)),
        raw(at::softplus(shifted)),
        step(raw.clamp_min(least)),
        factor(in.rate.to(at::kFloat).exp().neg_()),
        decay(step * factor) {}
};

// Returns x [chunks, groups, size, heads, n] with heads before positions.
at::Tensor by_head(const at::Tensor& x) {
  return x.transpose(2, 3).contiguous();
}

// All of a block that does not depend on states. `heads` are those of a group.
struct BlockMath {
  at::Tensor x;              // [chunks, groups, size, heads, head_dim]
  at::Tensor keys, queries;  // [chunks, groups, size, state]
  at::Tensor step;           // [chunks, groups, size, heads]
  at::Tensor values;         // x times step
  at::Tensor grown;          // decay from before the chunk to each position, [.., size, heads, 1]
  at::Tensor left;           // decay from each position to the chunk's end
  at::Tensor whole;          // decay of the whole chunk, [.., 1, heads, 1]
  at::Tensor pairs;   // decay between positions, [.., heads, size, size]; 0 above the diagonal
  at::Tensor scores;  // products of queries and keys, times `pairs`

  BlockMath(const MambaInputs& in, const MambaGates& gates, const MambaSpec& spec,
            const BlockRows& rows) {
    const int64_t inner = spec.inner_width(), keyed = spec.groups * spec.state;
    x = rows.gather(in.mixed.narrow(1, 0, inner), spec.groups);
    keys = rows.gather(in.mixed.narrow(1, inner, keyed), spec.groups);
    queries = rows.gather(in.mixed.narrow(1, inner + keyed, keyed), spec.groups);
    step = rows.gather(gates.step, spec.groups);
    const int64_t size = x.size(2);
    x = x.view({x.size(0), spec.groups, size, -1, spec.head_dim});
    values = x * step.unsqueeze(-1);
    const at::Tensor ones = at::ones({size, size}, x.options());
    // A product instead of cumsum, which has no repeatable bits on a GPU.
    const at::Tensor sum = at::matmul(ones.tril(), rows.gather(gates.decay, spec.groups));
    const at::Tensor end = sum.narrow(2, size - 1, 1), heads = turned(sum);
    grown = sum.exp().unsqueeze(-1);
    left = (end - sum).exp_().unsqueeze(-1);
    whole = end.exp().unsqueeze(-1);
    // Above the diagonal the difference is positive, so it must not reach exp.
    pairs = (heads.unsqueeze(-1) - heads.unsqueeze(-2))
                .masked_fill_(ones.triu(1).to(at::kBool), -std::numeric_limits<float>::infinity())
                .exp_();
    scores = pairs * at::matmul(queries, turned(keys)).unsqueeze(2);
  }
  // Returns a product with states as [chunks, groups, size, heads, head_dim].
  at::Tensor with_states(const at::Tensor& rows, const at::Tensor& states) const {
    return at::matmul(rows, states.flatten(3)).view(x.sizes());
  }
  // Returns what positions add to states: rows^T x, [chunks, groups, state, heads, head_dim].
  at::Tensor to_states(const at::Tensor& rows, const at::Tensor& values_of_rows) const {
    return at::matmul(turned(rows), values_of_rows.flatten(3))
        .view({x.size(0), x.size(1), rows.size(3), x.size(3), x.size(4)});
  }
  std::vector<int64_t> state_sizes() const {
    return {x.size(0), x.size(1), keys.size(3), x.size(3), x.size(4)};
  }
};

// Runs a block forward. `state` is that of the last chunk's end and passes to the next block; the
// state before each chunk but a document's first is added to `kept`. Returns the output.
at::Tensor block_forward(const ChunkBlock& block, const BlockMath& math, at::Tensor& state,
                         std::vector<at::Tensor>* kept) {
  at::Tensor out = at::matmul(math.scores, by_head(math.values)).transpose(2, 3).contiguous();
  const bool reads = block.reads_states(), passes = block.passes_state();
  if (!reads && !passes) return out;
  at::Tensor written, states;
  if (passes) written = math.to_states(math.keys, math.values * math.left);
  if (reads) states = at::zeros(math.state_sizes(), out.options());
  for (int64_t j = 0; j < std::ssize(block.chunks); ++j) {
    const Chunk& chunk = block.chunks[static_cast<size_t>(j)];
    if (!chunk.first) {
      states.select(0, j).copy_(state);
      if (kept != nullptr) kept->push_back(state);
    }
    if (chunk.last) continue;
    const at::Tensor own = written.select(0, j);
    state = chunk.first ? own.clone() : at::addcmul(own, state, math.whole.select(0, j));
  }
  if (reads) out.addcmul_(math.with_states(math.queries, states), math.grown);
  return out;
}

// The states before the chunks of a block, and the gradients of those after them; undefined if all
// are zero.
struct CarriedStates {
  at::Tensor before, ends;
};

// `grad` is the gradient of the block's output and `state_grad` that of the state at the last
// chunk's end. Takes the states of the chunks from the end of `kept`.
CarriedStates carry_back(const ChunkBlock& block, const BlockMath& math, const at::Tensor& grad,
                         at::Tensor& state_grad, std::vector<at::Tensor>& kept) {
  CarriedStates out;
  const bool reads = block.reads_states(), passes = block.passes_state();
  if (passes) out.ends = at::zeros(math.state_sizes(), grad.options());
  at::Tensor asked;
  if (reads) {
    out.before = at::zeros(math.state_sizes(), grad.options());
    asked = math.to_states(math.queries, grad * math.grown);
  }
  for (int64_t j = std::ssize(block.chunks) - 1; (reads || passes) && j >= 0; --j) {
    const Chunk& chunk = block.chunks[static_cast<size_t>(j)];
    if (!chunk.last) out.ends.select(0, j).copy_(state_grad);
    if (chunk.first) continue;
    out.before.select(0, j).copy_(kept.back());
    kept.pop_back();
    const at::Tensor own = asked.select(0, j);
    state_grad = chunk.last ? own.clone() : at::addcmul(own, state_grad, math.whole.select(0, j));
  }
  return out;
}

// The gradients of what a block reads, [chunks, groups, size, ...].
struct BlockGradients {
  at::Tensor values, keys, queries, decay;
};

// Sums of decay are in many factors exp(sum); each gives itself times its gradient to the sum.
BlockGradients block_backward(const BlockMath& math, const at::Tensor& grad,
                              const CarriedStates& carried) {
  const int64_t size = math.x.size(2);
  const at::Tensor grad_heads = by_head(grad);
  const at::Tensor by_scores = at::matmul(grad_heads, turned(by_head(math.values))).tril_();
  const at::Tensor products = (by_scores * math.pairs).sum(2);
  BlockGradients out;
  out.values = at::matmul(turned(math.scores), grad_heads).transpose(2, 3).contiguous();
  out.queries = at::matmul(products, math.keys);
  out.keys = at::matmul(turned(products), math.queries);
  // The diagonal would be added and taken away again, and leave its rounding.
  const at::Tensor pairs = (by_scores * math.scores).tril_(-1);
  at::Tensor sums = turned(pairs.sum(-1).sub_(pairs.sum(-2))).contiguous();
  if (carried.before.defined()) {
    const at::Tensor grown = grad * math.grown;
    out.queries.add_(at::matmul(grown.flatten(3), turned(carried.before.flatten(3))));
    sums.add_((math.with_states(math.queries, carried.before).mul_(grown)).sum(-1));
  }
  if (carried.ends.defined()) {
    const at::Tensor written = math.with_states(math.keys, carried.ends).mul_(math.left);
    out.values.add_(written);
    out.keys.add_(
        at::matmul((math.values * math.left).flatten(3), turned(carried.ends.flatten(3))));
    const at::Tensor of_rows = (written * math.values).sum(-1);
    sums.sub_(of_rows);
    at::Tensor end = sums.narrow(2, size - 1, 1);
    end.add_(of_rows.sum(2, true));
    if (carried.before.defined()) {
      end.add_(
          (carried.before * carried.ends).sum({2, 4}).unsqueeze(2).mul_(math.whole.squeeze(-1)));
    }
  }
  out.decay = at::matmul(at::ones({size, size}, sums.options()).triu(), sums);
  return out;
}

// The gradients of the values with keys and queries, in their dtype, and in fp32 those of the step
// (as a factor of the values), of the decay and of the skip, by position and head.
struct MambaGradients {
  at::Tensor mixed, step, decay, skip;
};

MambaGradients scan_backward(const MambaInputs& in, const MambaGates& gates, const MambaSpec& spec,
                             const std::vector<int64_t>& document_starts,
                             std::vector<at::Tensor> kept, const at::Tensor& grad) {
  MambaGradients out{at::empty(in.mixed.sizes(), in.mixed.options().requires_grad(false)),
                     at::empty_like(gates.step), at::empty_like(gates.step),
                     at::empty_like(gates.step)};
  const at::Tensor skip = in.skip.to(at::kFloat).view({spec.groups, 1, -1, 1});
  const std::vector<ChunkBlock> blocks = make_blocks(document_starts);
  at::Tensor state_grad;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const BlockRows rows(*block, grad.device());
    const BlockMath math(in, gates, spec, rows);
    const at::Tensor block_grad = rows.gather(grad, spec.groups).view(math.x.sizes());
    const BlockGradients own =
        block_backward(math, block_grad, carry_back(*block, math, block_grad, state_grad, kept));
    rows.scatter(out.step, (own.values * math.x).sum(-1));
    rows.scatter(out.skip, (block_grad * math.x).sum(-1));
    rows.scatter(out.decay, own.decay);
    const at::Tensor by_x = (own.values * math.step.unsqueeze(-1)).addcmul_(block_grad, skip);
    rows.scatter(out.mixed, {by_x.flatten(3), own.keys, own.queries});
  }
  return out;
}

// The inputs are those of MambaInputs, in its order.
struct Mamba {
  MambaInputs in;
  MambaSpec spec;
  std::vector<int64_t> document_starts;
  std::vector<at::Tensor> states = {};

  at::Tensor forward(bool keeps) {
    const MambaGates gates(in, spec.least_step);
    at::Tensor out =
        at::empty({in.mixed.size(0), spec.inner_width()}, in.mixed.options().dtype(at::kFloat));
    const at::Tensor factor = in.skip.to(at::kFloat).view({spec.groups, 1, -1, 1});
    at::Tensor state;
    for (const ChunkBlock& block : make_blocks(document_starts)) {
      const BlockRows rows(block, in.mixed.device());
      const BlockMath math(in, gates, spec, rows);
      at::Tensor y = block_forward(block, math, state, keeps ? &states : nullptr);
      rows.scatter(out, y.addcmul_(math.x, factor).flatten(3));
    }
    return out;
  }

  std::vector<at::Tensor*> saved() {
    return {&in.mixed, &in.steps, &in.rate, &in.offset, &in.skip};
  }

  // Each state is freed after its block.
  void backward(const std::vector<at::Tensor>& grads, InputGradients& gradients) {
    const MambaGates gates(in, spec.least_step);
    MambaGradients own =
        scan_backward(in, gates, spec, document_starts, std::move(states), grads[0]);
    const at::Tensor rate = row_sum(own.decay * gates.decay);
    at::Tensor steps = own.step.addcmul_(own.decay, gates.factor).mul_(at::sigmoid(gates.shifted));
    steps.masked_fill_(gates.raw < spec.least_step, 0.0);
    gradients[0] = own.mixed;
    gradients[1] = steps.to(in.steps.scalar_type());
    gradients[2] = rate.to(in.rate.scalar_type());
    gradients[3] = row_sum(steps).to(in.offset.scalar_type());
    gradients[4] = row_sum(own.skip).to(in.skip.scalar_type());
  }
};

}  // namespace

at::Tensor mamba_scan(const MambaInputs& inputs, const MambaSpec& spec,
                      const std::vector<int64_t>& document_starts) {
  const bool keeps = at::GradMode::is_enabled();
  return run_operation(Mamba{inputs, spec, document_starts},
                       {inputs.mixed, inputs.steps, inputs.rate, inputs.offset, inputs.skip},
                       keeps);
}

}  // namespace longshore
