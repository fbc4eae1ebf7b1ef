#include "model/decoder/head_unit.h"

#include "base/errors.h"
#include "base/texts.h"
#include "device/gpu_tensors.h"
#include "model/ops/fused_ops.h"
#include "model/ops/row_ops.h"
#include "model/units/row_products.h"

namespace longshore {
namespace {

// Returns the losses of all chunks, fp32 [trained].
at::Tensor joined(const std::vector<at::Tensor>& losses) {
  return losses.empty() ? at::empty({0}, at::kFloat) : at::cat(losses);
}

// Sets the sum of losses. HOST WAIT, on a GPU: the loss is the step's result.
void sum_losses(const std::vector<at::Tensor>& losses, const at::Tensor& trained,
                const MicroBatch& batch, LossUnit::Result& result) {
  result.trained = trained.size(0);
  if (losses.empty()) return;
  result.loss = ordered_sum(at::cat(losses), batch.column(kWeightColumn));
}

// Returns for each trained position whether its document is an answer that people chose.
std::vector<char> chosen_positions(const at::Tensor& trained, const MicroBatch& batch) {
  const std::vector<int64_t>& desirable = batch.column<kDesirableColumn>();
  std::vector<char> chosen;
  for (const size_t document : documents_of(trained, batch.document_starts)) {
    chosen.push_back(desirable.at(document) != 0 ? 1 : 0);
  }
  return chosen;
}

// Counts the positions whose target has the highest score, and sums their entropies in order in
// fp64. Of judged answers only the chosen ones have hits, because the others should be unlikely.
// HOST WAIT, on a GPU: these are results of the step, as the losses are, and 8 bytes a position.
void count_tokens(const std::vector<at::Tensor>& statistics, const at::Tensor& trained,
                  const MicroBatch& batch, HitCount& count) {
  if (statistics.empty()) return;
  const bool judged = batch.loss && batch.loss->traits().judged;
  if (judged && batch.column<kDesirableColumn>().empty()) return;
  const std::vector<char> chosen = judged
                                       ? chosen_positions(trained, batch)
                                       : std::vector<char>(static_cast<size_t>(trained.size(0)), 1);
  const at::Tensor all = at::cat(statistics).to(at::kCPU).contiguous();
  LONGSHORE_CHECK(all.size(0) == trained.size(0)) << all.size(0) << " of " << trained.size(0);
  const auto* const values = all.const_data_ptr<float>();
  for (size_t i = 0; i < chosen.size(); ++i) {
    count.entropies += static_cast<double>(values[2 * i + 1]);
    if (chosen[i] == 0) continue;
    count.compared += 1;
    count.hits += values[2 * i] != 0.0f ? 1 : 0;
  }
  count.measured += all.size(0);
}

}  // namespace

at::Tensor LogitRule::project(const at::Tensor& normed, const Linear& table) const {
  at::Tensor logits = table.product(normed);
  return divides() ? logits.div_(divisor_) : logits;
}

at::Tensor LogitRule::bend(const at::Tensor& logits) const {
  return logits.to(at::kFloat).div_(cap_).tanh_();
}

at::Tensor LogitRule::scores(const at::Tensor& normed, const Linear& table) const {
  const at::Tensor raw = project(normed, table);
  if (!caps()) return raw.to(at::kFloat);
  if (!table.by_row) return bend(raw).mul_(cap_);
  return fused::each_row(raw.to(at::kFloat), [&](const at::Tensor& row) { return bend(row); })
      .mul_(cap_);
}

at::Tensor LogitRule::by_product(at::Tensor grad, at::Tensor bent, const at::Tensor& like) const {
  if (bent.defined()) at::tanh_backward_out(grad, grad, bent);
  bent.reset();
  grad = grad.to(like.scalar_type());
  return divides() ? grad.div_(divisor_) : grad;
}

// The sums that backward fills over the chunks.
struct HeadUnit::Gradients {
  HeadScale scale = {};
  GradientSink* sink = nullptr;
  NormGradients norm;
  at::Tensor in = {};             // undefined if not wanted
  at::Tensor magnitude_sum = {};  // of the head's adapter, fp32; undefined unless it is DoRA
};

// Parts holds the losses of the trained positions and their statistics, by chunk.
struct HeadUnit::Parts {
  std::vector<at::Tensor> losses = {};      // fp32 [N]
  std::vector<at::Tensor> statistics = {};  // HeadPart::statistics; empty if they are unknown
};

HeadUnit::HeadUnit(const ArchSpec& arch, bool tied)
    : norm_kind_(arch.final_norm_kind()),
      norm_eps_(arch.norm_eps),
      rule_(arch),
      scores_(make_head_scores(arch)),
      vocabulary_(arch.vocabulary),
      index_(head_parameters(arch, {}, tied), arch),
      drops_(arch.adapter.dropout > 0.0),
      head_index_(tied ? static_cast<int32_t>(head_parameters(arch, {}, tied).size())
                       : index_.weight_index(Module::kHead)) {}

UnitTraits HeadUnit::traits(const UnitUse& use) const {
  const bool adapted = index_.index(Module::kHead, ParameterRole::kLoraA) >= 0;
  const bool dora = index_.index(Module::kHead, ParameterRole::kLoraMagnitude) >= 0;
  const std::string adapter = dora ? " dora" : adapted ? " lora" : "";
  // Counts the logits, which their gradient overwrites, with DoRA the logits that its gradient
  // makes again, and with a cap two more copies in fp32.
  const Bytes of_logit = (dora ? 2 : 1) * width_of(use.compute) +
                         (rule_.caps() ? 2 * width_of(DType::kF32) : 0) + scores_->gpu_bytes();
  return {.signature = "head " + std::to_string(static_cast<int>(norm_kind_)) + " " +
                       std::to_string(vocabulary_) + (rule_.divides() ? " divided" : "") +
                       (rule_.caps() ? " capped" : "") + adapter +
                       (adapted && drops_ ? " dropout" : "") + scores_->signature(),
          .documents = {use.longest_document},  // the head does not depend on documents
          .positions_at_once = head_chunk_positions(vocabulary_, use.device),
          .teacher_tokens = scores_->teacher_tokens(),
          .gpu_bytes_of_position = vocabulary_ * of_logit};
}

Linear HeadUnit::head(UnitParameters parameters, const MicroBatch& batch) const {
  Linear head = index_.linear(parameters, Module::kHead, batch);
  head.weight = parameters.at(static_cast<size_t>(head_index_));
  head.place(ParameterRole::kWeight).index = head_index_;
  head.set_norms();
  return head;
}

at::Tensor HeadUnit::norm(UnitParameters parameters, const at::Tensor& x) const {
  return normalise(x, index_.weight(parameters, Module::kFinalNorm),
                   index_.bias(parameters, Module::kFinalNorm), norm_kind_, norm_eps_);
}

// Turns the gradient by the product into those of head, adapter, norm and input.
void HeadUnit::chunk_gradients(const at::Tensor& x, const at::Tensor& normed,
                               at::Tensor grad_logits, const Linear& head, const at::Tensor& rows,
                               Gradients& gradients) {
  GradientSink& sink = *gradients.sink;
  auto own = LinearGradients::of(head, grad_logits, normed, sink, gradients.magnitude_sum);
  grad_logits.reset();
  own.add_weight(head, normed, sink);
  if (!gradients.in.defined() && !gradients.norm.wanted()) return;
  const at::Tensor grad_normed = head.input_gradient(own.product);
  own.add_to_input(head, grad_normed);
  own = {};
  const at::Tensor grad_x = gradients.norm.backward(grad_normed, x);
  if (gradients.in.defined()) copy_rows(gradients.in, rows, grad_x);
}

HeadUnit::Parts HeadUnit::run(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                              const at::Tensor& trained, Gradients* gradients,
                              LossSum& sums) const {
  const at::NoGradGuard no_grad;
  const bool wanted = gradients != nullptr;
  const bool scored = wanted && gradients->scale.scored;
  const int64_t chunk =
      head_chunk_positions(vocabulary_, on_gpu(in.at(0)) ? DeviceKind::kCuda : DeviceKind::kCpu);
  const int64_t count = trained.size(0);
  Parts parts;
  if (count == 0) return parts;
  const Linear whole = head(parameters, batch);
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t length = std::min(chunk, count - begin);
    const at::Tensor rows = trained.narrow(0, begin, length);
    const at::Tensor targets = batch.targets.index_select(0, rows);
    const at::Tensor x = in.at(0).index_select(0, rows);
    const at::Tensor normed = norm(parameters, x);
    const Linear head = whole.of_rows(rows);
    at::Tensor logits = rule_.project(normed, head);
    at::Tensor bent;  // saved for the cap's derivative
    if (rule_.caps()) {
      bent = rule_.bend(logits);
      logits = wanted ? bent * rule_.cap() : bent.mul_(rule_.cap());
    }
    if (batch.hits != nullptr) batch.hits->compare(logits, targets);
    HeadPart part = scores_->whole(batch, begin, targets, std::move(logits),
                                   wanted ? &gradients->scale : nullptr, sums);
    if (!scored) {
      parts.losses.push_back(part.losses);
      if (part.statistics.defined()) parts.statistics.push_back(part.statistics);
    }
    if (!wanted) continue;
    chunk_gradients(x, normed, rule_.by_product(std::move(part.by_logits), std::move(bent), x),
                    head, rows, *gradients);
  }
  return parts;
}

LossUnit::Result HeadUnit::loss(UnitParameters parameters, const Carry& in,
                                const MicroBatch& batch) const {
  const at::Tensor trained = trained_positions(batch.targets);
  Result result;
  const Parts parts = run(parameters, in, batch, trained, nullptr, result);
  if (scores_first(batch)) {
    apply_loss(batch, trained, joined(parts.losses), result);
  } else {
    sum_losses(parts.losses, trained, batch, result);
  }
  return result;
}

LossUnit::Result HeadUnit::loss_and_gradients(UnitParameters parameters, const Carry& in,
                                              const MicroBatch& batch, double scale,
                                              bool want_grad_in, GradientSink& sink) const {
  Result result;
  const at::Tensor trained = trained_positions(batch.targets);
  HeadScale scales{.scale = scale};
  if (scores_first(batch)) {
    // The gradient of a position depends on all of its document and of the other answer's, so the
    // log-probabilities come first, and the logits exist a second time for gradients.
    const Parts parts = run(parameters, in, batch, trained, nullptr, result);
    scales.factors = apply_loss(batch, trained, joined(parts.losses), result).to(in.at(0).device());
    count_tokens(parts.statistics, trained, batch, result.tokens);
    scales.scored = true;
  } else if (const at::Tensor weights = weights_of(batch.all_columns()); weights.defined()) {
    scales.factors = weights.to(in.at(0).device());
  }
  at::Tensor grad_in;
  if (want_grad_in) grad_in = at::zeros(in.at(0).sizes(), in.at(0).options());
  Gradients gradients{
      .scale = scales,
      .sink = &sink,
      .norm = index_.norm_gradients(parameters, Module::kFinalNorm, norm_kind_, norm_eps_, sink),
      .in = grad_in};
  const int32_t magnitude_index = index_.index(Module::kHead, ParameterRole::kLoraMagnitude);
  if (magnitude_index >= 0) {
    const auto sums = in.at(0).options().dtype(at::kFloat).requires_grad(false);
    gradients.magnitude_sum = at::zeros({vocabulary_}, sums);
  }
  const Parts parts = run(parameters, in, batch, trained, &gradients, result);
  if (!scores_first(batch)) {
    sum_losses(parts.losses, trained, batch, result);
    count_tokens(parts.statistics, trained, batch, result.tokens);
  }
  gradients.norm.add_to(sink);
  if (magnitude_index >= 0) sink.add(magnitude_index, gradients.magnitude_sum);
  if (want_grad_in) result.grad_in.push_back(grad_in);
  return result;
}

at::Tensor HeadUnit::logits(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            const at::Tensor& positions) const {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = positions.to(in.at(0).device());
  const at::Tensor normed = norm(parameters, in.at(0).index_select(0, rows));
  return rule_.scores(normed, head(parameters, batch).of_rows(rows));
}

}  // namespace longshore
