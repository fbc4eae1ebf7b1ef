// The part of head_math that computes losses from log-probabilities: over pairs or rows, and the
// clipped loss of a policy.
#include "base/errors.h"
#include "model/head_unit.h"
#include "model/preference_loss.h"

namespace longshore {
namespace {

// Returns the scores of the batch's documents. `document_of` becomes the document of each trained
// position.
std::vector<AnswerScore> score_documents(const MicroBatch& batch, const at::Tensor& trained,
                                         const at::Tensor& losses,
                                         std::vector<size_t>& document_of) {
  const at::Tensor places = trained.to(at::kCPU).contiguous();
  const at::Tensor values = losses.to(at::kCPU).contiguous();
  const auto* const position = places.const_data_ptr<int64_t>();
  const auto* const loss = values.const_data_ptr<float>();
  const size_t documents = batch.document_starts.size() - 1;
  const std::vector<double>& references = batch.reference_logps;
  const bool paired = is_paired(batch.preference->loss);
  LONGSHORE_CHECK(!paired || documents % 2 == 0) << documents << " documents are no pairs";
  LONGSHORE_CHECK(paired || batch.desirable.size() == documents) << batch.desirable.size();
  LONGSHORE_CHECK(references.size() == (has_reference(batch.preference->loss) ? documents : 0))
      << references.size() << " reference values";
  std::vector<AnswerScore> scores(documents);
  size_t document = 0;
  for (int64_t i = 0; i < places.numel(); ++i) {
    while (position[i] >= batch.document_starts[document + 1]) ++document;
    scores[document].logp -= static_cast<double>(loss[i]);
    scores[document].tokens += 1;
    document_of.push_back(document);
  }
  for (size_t i = 0; i < references.size(); ++i) scores[i].reference = references[i];
  return scores;
}

at::Tensor apply_policy(const MicroBatch& batch, const at::Tensor& losses,
                        LossUnit::Result& result) {
  const at::Tensor values = losses.to(at::kCPU).contiguous();
  const auto* const loss = values.const_data_ptr<float>();
  const std::vector<float>& advantages = batch.column(kAdvantageColumn);
  const std::vector<float>& old_logps = batch.column(kOldLogpColumn);
  const auto count = static_cast<size_t>(values.numel());
  LONGSHORE_CHECK(advantages.size() == count && old_logps.size() == count)
      << advantages.size() << " advantages and " << old_logps.size() << " old logps of " << count;
  at::Tensor factors = at::empty({values.numel()}, at::kFloat);
  auto* const factor = factors.mutable_data_ptr<float>();
  for (size_t i = 0; i < count; ++i) {
    const PolicyTerm term =
        policy_term(*batch.preference, -static_cast<double>(loss[i]),
                    static_cast<double>(old_logps[i]), static_cast<double>(advantages[i]));
    result.loss_sum += term.loss;
    result.policy.add(term);
    factor[i] = static_cast<float>(-term.by_logp);  // a loss is a negative logp
  }
  result.trained = values.numel();
  return factors;
}

// Adds the losses of the batch's pairs or rows to `result`, and returns their derivatives by the
// log-probability of each document.
std::vector<double> add_losses(const MicroBatch& batch, const std::vector<AnswerScore>& scores,
                               LossUnit::Result& result) {
  std::vector<double> by_logp(scores.size());
  if (!is_paired(batch.preference->loss)) {
    for (size_t i = 0; i < scores.size(); ++i) {
      const bool desirable = batch.desirable[i] != 0;
      const RowLoss row = row_loss(*batch.preference, scores[i], desirable, batch.kl);
      result.loss_sum += row.loss;
      result.preference.add(row, desirable, scores[i].logp, batch.kl);
      by_logp[i] = row.by_logp;
    }
    return by_logp;
  }
  for (size_t i = 0; i < scores.size(); i += 2) {
    const PairLoss pair = pair_loss(*batch.preference, scores[i], scores[i + 1]);
    result.loss_sum += pair.loss;
    result.preference.add(pair, scores[i].logp, scores[i + 1].logp);
    by_logp[i] = pair.by_chosen;
    by_logp[i + 1] = pair.by_rejected;
  }
  return by_logp;
}

}  // namespace

at::Tensor apply_preference(const MicroBatch& batch, const at::Tensor& trained,
                            const at::Tensor& losses, LossUnit::Result& result) {
  if (batch.preference->loss == LossKind::kPolicy) return apply_policy(batch, losses, result);
  std::vector<size_t> document_of;
  const std::vector<AnswerScore> scores = score_documents(batch, trained, losses, document_of);
  result.trained = trained.numel();
  const std::vector<double> by_logp = add_losses(batch, scores, result);
  for (const AnswerScore& score : scores) result.document_logps.push_back(score.logp);
  at::Tensor factors = at::empty({trained.numel()}, at::kFloat);
  auto* const factor = factors.mutable_data_ptr<float>();
  for (size_t i = 0; i < document_of.size(); ++i) {
    factor[i] = static_cast<float>(-by_logp[document_of[i]]);  // a loss is a negative logp
  }
  return factors;
}

}  // namespace longshore
