#include "tests/model/plain_runner.h"

#include <ATen/core/grad_mode.h>

#include <span>

#include "base/errors.h"
#include "model/units/unit.h"

namespace longshore {
namespace {

// Returns the rows of a piece, or all rows.
at::Tensor rows_of(const ParamSpec& spec, const std::map<std::string, at::Tensor>& tensors) {
  return tensors.at(spec.name).narrow(0, spec.first_row, spec.shape.front());
}

Carry detached(const Carry& carry, bool leaves) {
  Carry copies;
  for (const at::Tensor& tensor : carry) {
    copies.push_back(tensor.detach().requires_grad_(leaves));
  }
  return copies;
}

}  // namespace

NamedSink::NamedSink(const ModelSpec& model, UnitId unit, std::map<std::string, at::Tensor>& sums)
    : specs_(model.unit(unit).parameters), sums_(sums) {
  for (ParamRef ref : model.unit(unit).tied) specs_.push_back(model.parameter(ref));
  for (const ParamSpec& spec : specs_) {
    if (!spec.frozen && !sums_.contains(spec.name)) {
      sums_[spec.name] = at::zeros(spec.whole().shape, at::kFloat);
    }
  }
}

at::Tensor NamedSink::sum_of(int32_t parameter) const {
  return rows_of(specs_.at(static_cast<size_t>(parameter)), sums_);
}

bool NamedSink::wants(int32_t parameter) const {
  return !specs_.at(static_cast<size_t>(parameter)).frozen;
}

void NamedSink::add(int32_t parameter, const at::Tensor& grad) {
  sum_of(parameter).add_(grad);
}

void NamedSink::add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) {
  sum_of(parameter).index_add_(0, rows, values.to(at::kFloat));
}

void NamedSink::add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) {
  sum_of(parameter).addmm_(left.to(at::kFloat).t(), right.to(at::kFloat));
}

void NamedSink::add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                               const at::Tensor& right) {
  sum_of(parameter).select(0, matrix).addmm_(left.to(at::kFloat).t(), right.to(at::kFloat));
}

PlainStates::PlainStates(const Model& model, int32_t count, const StateUse& use)
    : layers(model.layer_states(use).value()),
      memory(at::full({count * bytes_of_sequence(layers)}, 0xff, at::kByte)),
      states(layers, count, use.longest,
             std::as_writable_bytes(std::span(memory.mutable_data_ptr<uint8_t>(),
                                              static_cast<size_t>(memory.numel())))) {}

PlainRunner::PlainRunner(const Model& model, const std::map<std::string, at::Tensor>& weights,
                         at::ScalarType dtype)
    : model_(model) {
  for (const UnitSpec& unit : model.spec().units) {
    std::vector<at::Tensor> list;
    for (const ParamSpec& parameter : unit.parameters) {
      const bool wide = parameter.stays_fp32 && parameter.frozen;
      if (parameter.packed) {
        list.push_back(weights.at(parameter.name));
        continue;
      }
      list.push_back(rows_of(parameter, weights)
                         .to(wide ? at::kFloat : dtype)
                         .detach()
                         .requires_grad_(!parameter.frozen));
    }
    for (ParamRef ref : unit.tied) {
      list.push_back(
          parameters_.at(static_cast<size_t>(ref.unit.value)).at(static_cast<size_t>(ref.index)));
    }
    parameters_.push_back(std::move(list));
  }
}

MicroBatch PlainRunner::make_batch(const std::vector<std::vector<int64_t>>& tokens,
                                   const std::vector<std::vector<int64_t>>& targets) {
  std::vector<int64_t> all_tokens, all_targets, positions;
  MicroBatch batch;
  for (size_t row = 0; row < tokens.size(); ++row) {
    batch.document_starts.push_back(static_cast<int64_t>(all_tokens.size()));
    all_tokens.insert(all_tokens.end(), tokens[row].begin(), tokens[row].end());
    all_targets.insert(all_targets.end(), targets[row].begin(), targets[row].end());
    for (size_t i = 0; i < tokens[row].size(); ++i) positions.push_back(static_cast<int64_t>(i));
  }
  batch.document_starts.push_back(static_cast<int64_t>(all_tokens.size()));
  batch.tokens = at::tensor(all_tokens, at::kLong);
  batch.targets = at::tensor(all_targets, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  return batch;
}

Carry PlainRunner::hidden(const MicroBatch& batch) const {
  const at::NoGradGuard no_grad;
  Carry carry;
  for (size_t i = 0; i + 1 < parameters_.size(); ++i) {
    carry = model_.unit(UnitId(static_cast<int32_t>(i))).forward(parameters_[i], carry, batch);
  }
  return carry;
}

at::Tensor PlainRunner::logits(const MicroBatch& batch) const {
  const at::Tensor all = at::arange(batch.position_count());
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  Carry carry;
  for (size_t i = 0; i + 1 < parameters_.size(); ++i) {
    const Unit& unit = model_.unit(UnitId(static_cast<int32_t>(i)));
    const at::Tensor part = unit.logits(parameters_[i], carry, batch, all);
    if (part.defined()) parts.push_back(part);
    carry = unit.forward(parameters_[i], carry, batch);
  }
  parts.push_back(model_.loss_unit().logits(parameters_.back(), carry, batch, all));
  return at::cat(parts, 1);
}

std::vector<at::Tensor> PlainRunner::continued_logits(
    PlainStates& states, const std::vector<NextTokens>& sequences) const {
  std::vector<std::vector<int64_t>> tokens;
  std::vector<int64_t> positions;
  ContinuedSequences continued{.states = &states.states};
  for (const NextTokens& next : sequences) {
    const auto rows = std::ssize(next.tokens);
    tokens.push_back(next.tokens);
    for (int64_t i = 0; i < rows; ++i) positions.push_back(next.before + i);
    continued.slots.emplace_back(next.slot);
    continued.before.push_back(next.before);
    continued.lengths.push_back(next.length > 0 ? next.length : next.before + rows);
  }
  MicroBatch batch = make_batch(tokens, tokens);
  batch.positions = at::tensor(positions, at::kLong);
  batch.continued = &continued;
  const at::Tensor all = logits(batch);
  std::vector<at::Tensor> own;
  for (size_t d = 0; d < sequences.size(); ++d) {
    own.push_back(all.slice(0, batch.document_starts[d], batch.document_starts[d + 1]));
  }
  return own;
}

double PlainRunner::loss(const MicroBatch& batch) const {
  return model_.loss_unit().loss(parameters_.back(), hidden(batch), batch).loss;
}

HitCount PlainRunner::hits(MicroBatch batch) const {
  TokenHits hits;
  batch.hits = &hits;
  loss(batch);
  return hits.count();
}

void PlainRunner::one_batch(const MicroBatch& batch, double scale, Recompute recompute,
                            Outcome& outcome) const {
  const size_t last = parameters_.size() - 1;
  std::vector<Carry> inputs(parameters_.size()), outputs(parameters_.size());
  for (size_t i = 0; i < last; ++i) {
    const at::AutoGradMode mode(recompute == Recompute::kNone && i > 0);
    if (i > 0) inputs[i] = detached(outputs[i - 1], true);
    outputs[i] =
        model_.unit(UnitId(static_cast<int32_t>(i))).forward(parameters_[i], inputs[i], batch);
  }
  NamedSink head(model_.spec(), UnitId(static_cast<int32_t>(last)), outcome.gradients);
  const LossUnit::Result result = model_.loss_unit().loss_and_gradients(
      parameters_[last], detached(outputs[last - 1], false), batch, scale, true, head);
  outcome.loss_sum += result.loss;
  outcome.trained += result.trained;
  Carry grad = result.grad_in;
  for (size_t i = last; i-- > 0;) {
    const UnitId id(static_cast<int32_t>(i));
    NamedSink sink(model_.spec(), id, outcome.gradients);
    const Unit& unit = model_.unit(id);
    if (unit.has_own_backward()) {
      const at::NoGradGuard no_grad;
      grad = unit.backward(parameters_[i], detached(inputs[i], false), batch, grad, sink);
      continue;
    }
    if (recompute == Recompute::kUnit) {
      MicroBatch recomputed = batch;
      recomputed.graph_only = true;
      outputs[i] = unit.forward(parameters_[i], inputs[i], recomputed);
    }
    grad =
        autograd_backward(parameters_[i], inputs[i], outputs[i], grad, /*want_grad_in=*/true, sink);
  }
}

PlainRunner::Outcome PlainRunner::gradients(const std::vector<MicroBatch>& batches, double scale,
                                            Recompute recompute) const {
  Outcome outcome;
  const RouterShape shape = model_.routers();
  if (!shape.asked()) {
    for (const MicroBatch& batch : batches) one_batch(batch, scale, recompute, outcome);
    return outcome;
  }
  // The choices of all tokens are known before the first gradient.
  RouterLoad load(shape, at::kCPU);
  load.begin();
  std::vector<MicroBatch> noted = batches;
  load.count(true);
  for (MicroBatch& batch : noted) {
    batch.routers = &load;
    hidden(batch);
  }
  load.count(false);
  load.balance(load.pooled());
  outcome.balance_loss = shape.balance * router_statistics(shape, load.sums()).balance_loss;
  for (const MicroBatch& batch : noted) one_batch(batch, scale, recompute, outcome);
  return outcome;
}

}  // namespace longshore
