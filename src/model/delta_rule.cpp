#include "model/delta_rule.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <utility>

#include "model/adapted_product.h"
#include "model/differentiable_ops.h"
#include "model/document_chunks.h"

namespace longshore {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr double kNormEps = 1e-6;  // fixed, whatever the model's norms have

// Decay and beta of each position and value head, fp32 [T, value_heads].
struct DeltaGates {
  at::Tensor beta, decay;

  explicit DeltaGates(const DeltaInputs& in)
      : beta(at::sigmoid(in.beta).to(at::kFloat)),
        decay(at::softplus(shifted(in)).mul_(in.rate.to(at::kFloat).exp()).neg_()) {}
  static at::Tensor shifted(const DeltaInputs& in) {
    return in.decay.to(at::kFloat) + in.step.to(at::kFloat);
  }
};

// The unit vectors of queries or keys, [chunks, key_heads, size, key_dim].
struct UnitVectors {
  at::Tensor values, factors;

  explicit UnitVectors(const at::Tensor& x)
      : factors(x.square().sum(-1, true).add_(kNormEps).rsqrt_()) {
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

  BlockMath(const DeltaInputs& in, const DeltaGates& gates, const DeltaSpec& spec,
            const BlockRows& rows)
      : query_units(rows.gather(in.mixed.narrow(1, 0, spec.key_width()), spec.key_heads)),
        key_units(
            rows.gather(in.mixed.narrow(1, spec.key_width(), spec.key_width()), spec.key_heads)),
        q(query_units.shared(spec.value_heads) * scale(spec)),
        k(key_units.shared(spec.value_heads)),
        v(rows.gather(in.mixed.narrow(1, 2 * spec.key_width(), spec.value_width()),
                      spec.value_heads)),
        beta(rows.gather(gates.beta, spec.value_heads)) {
    const int64_t size = v.size(2);
    const at::Tensor ones = at::ones({size, size}, v.options());
    // A product instead of cumsum, which has no repeatable bits on a GPU.
    const at::Tensor sum = at::matmul(ones.tril(), rows.gather(gates.decay, spec.value_heads));
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
  static double scale(const DeltaSpec& spec) {
    return 1.0 / std::sqrt(static_cast<double>(spec.key_dim));
  }
  at::Tensor new_values() const { return solved.narrow(3, 0, v.size(3)); }
  at::Tensor reading() const { return solved.narrow(3, v.size(3), k.size(3)); }
};

// Runs a block forward. `state` is that of the last chunk's end and passes to the next block; the
// state before each chunk but a document's first is added to `kept`. Returns the output.
at::Tensor block_forward(const ChunkBlock& block, const BlockMath& math, at::Tensor& state,
                         std::vector<at::Tensor>* kept) {
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
      if (kept != nullptr) kept->push_back(state);
    }
    if (chunk.last) continue;
    const at::Tensor written = at::matmul(writing.select(0, j), corrected);
    state = chunk.first ? written : at::addcmul(written, state, math.whole.select(0, j));
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
// chunk's end. Takes the states of the chunks from the end of `kept`.
CarriedGradients carry_back(const ChunkBlock& block, const BlockMath& math, const at::Tensor& grad,
                            at::Tensor& state_grad, std::vector<at::Tensor>& kept) {
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
      out.states.select(0, j).copy_(kept.back());
      kept.pop_back();
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

DeltaSpec spec_from(const c10::List<int64_t>& sizes) {
  return {.key_heads = sizes[0],
          .value_heads = sizes[1],
          .key_dim = sizes[2],
          .value_dim = sizes[3],
          .taps = 0};
}

// The fp32 gradients of queries, keys and values, and of the gates by position.
struct DeltaGradients {
  at::Tensor mixed, beta, decay;
};

DeltaGradients scan_backward(const DeltaInputs& in, const DeltaGates& gates, const DeltaSpec& spec,
                             const std::vector<int64_t>& document_starts,
                             std::vector<at::Tensor> kept, const at::Tensor& grad) {
  const at::TensorOptions plain = grad.options().requires_grad(false);
  DeltaGradients out{at::empty(in.mixed.sizes(), plain), at::empty_like(gates.beta),
                     at::empty_like(gates.decay)};
  const std::vector<ChunkBlock> blocks = make_blocks(document_starts);
  at::Tensor state_grad;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const BlockRows rows(*block, grad.device());
    const BlockMath math(in, gates, spec, rows);
    const at::Tensor block_grad = rows.gather(grad, spec.value_heads);
    const BlockGradients own =
        block_backward(math, block_grad, carry_back(*block, math, block_grad, state_grad, kept));
    const int64_t keys = spec.key_width();
    rows.scatter(out.mixed.narrow(1, 0, keys),
                 math.query_units.gradient(own.q).mul_(BlockMath::scale(spec)));
    rows.scatter(out.mixed.narrow(1, keys, keys), math.key_units.gradient(own.k));
    rows.scatter(out.mixed.narrow(1, 2 * keys, spec.value_width()), own.v);
    rows.scatter(out.beta, own.beta);
    rows.scatter(out.decay, own.decay);
  }
  return out;
}

struct DeltaFunction : Function<DeltaFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& mixed, const at::Tensor& beta,
                            const at::Tensor& decay, const at::Tensor& rate, const at::Tensor& step,
                            const DeltaSpec& spec, const std::vector<int64_t>& document_starts,
                            bool keeps) {
    const DeltaInputs in{mixed, beta, decay, rate, step};
    const DeltaGates gates(in);
    at::Tensor out = at::empty({mixed.size(0), spec.value_width()}, mixed.options());
    std::vector<at::Tensor> kept;
    at::Tensor state;
    for (const ChunkBlock& block : make_blocks(document_starts)) {
      const BlockRows rows(block, mixed.device());
      const BlockMath math(in, gates, spec, rows);
      rows.scatter(out, block_forward(block, math, state, keeps ? &kept : nullptr));
    }
    if (!keeps) return out;
    ctx->save_for_backward({mixed, beta, decay, rate, step});
    ctx->saved_data["sizes"] =
        c10::List<int64_t>({spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim});
    ctx->saved_data["starts"] = c10::List<int64_t>(at::ArrayRef<int64_t>(document_starts));
    ctx->saved_data["states"] = c10::List<at::Tensor>(at::ArrayRef<at::Tensor>(kept));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const DeltaInputs in{saved[0], saved[1], saved[2], saved[3], saved[4]};
    const at::NoGradGuard no_grad;
    const DeltaGates gates(in);
    std::vector<at::Tensor> kept = ctx->saved_data["states"].toTensorVector();
    ctx->saved_data.erase("states");  // each state is freed after its block
    DeltaGradients own =
        scan_backward(in, gates, spec_from(ctx->saved_data["sizes"].toIntList()),
                      ctx->saved_data["starts"].toIntVector(), std::move(kept), grads[0]);
    const at::Tensor rate_sum = row_sum(own.decay * gates.decay);
    at::Tensor shifted = own.decay.mul_(in.rate.to(at::kFloat).exp().neg_());
    shifted.mul_(at::sigmoid(DeltaGates::shifted(in)));
    own.beta.mul_(gates.beta).mul_(1.0 - gates.beta);
    return {own.mixed,
            own.beta.to(in.beta.scalar_type()),
            shifted.to(in.decay.scalar_type()),
            rate_sum.to(in.rate.scalar_type()),
            row_sum(shifted).to(in.step.scalar_type()),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor delta_rule(const DeltaInputs& inputs, const DeltaSpec& spec,
                      const std::vector<int64_t>& document_starts) {
  return DeltaFunction::apply(inputs.mixed, inputs.beta, inputs.decay, inputs.rate, inputs.step,
                              spec, document_starts, at::GradMode::is_enabled());
}

}  // namespace longshore
