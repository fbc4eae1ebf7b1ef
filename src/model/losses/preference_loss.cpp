#include "model/losses/preference_loss.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"

namespace longshore {
namespace {

// A certain answer (m = 0) would have infinite odds; means closer to 0 than fp32 tells count as
// this one.
constexpr double kMostMean = -1e-7;

// Returns -log sigmoid(z), without overflow.
double negative_log_sigmoid(double z) {
  return std::max(-z, 0.0) + std::log1p(std::exp(-std::abs(z)));
}

double sigmoid(double z) {
  const double small = std::exp(-std::abs(z));
  return z >= 0.0 ? 1.0 / (1.0 + small) : small / (1.0 + small);
}

struct Slope {
  double value = 0.0;
  double by_z = 0.0;
};

// Returns right * L(z) + wrong * L(-z).
Slope logistic(double z, double right, double wrong) {
  return {right * negative_log_sigmoid(z) + wrong * negative_log_sigmoid(-z),
          wrong * sigmoid(z) - right * sigmoid(-z)};
}

// Returns the log odds of a mean log-probability below 0, and their derivative.
Slope log_odds(double mean) {
  const double m = std::min(mean, kMostMean);
  const double one_minus = -std::expm1(m);  // 1 - exp(m)
  return {m - (m < -M_LN2 ? std::log1p(-std::exp(m)) : std::log(one_minus)), 1.0 / one_minus};
}

}  // namespace

PairLoss pair_loss(const PreferenceOptions& options, const AnswerScore& chosen,
                   const AnswerScore& rejected) {
  LONGSHORE_CHECK(chosen.tokens > 0 && rejected.tokens > 0);
  const double beta = options.beta, smoothing = options.label_smoothing;
  const auto n_c = static_cast<double>(chosen.tokens), n_d = static_cast<double>(rejected.tokens);
  const double r_c = chosen.logp - chosen.reference, r_d = rejected.logp - rejected.reference;
  const double m_c = chosen.logp / n_c, m_d = rejected.logp / n_d;
  PairLoss pair;
  const bool ratios = traits_of(options.loss).reference;
  pair.chosen_reward = beta * (ratios ? r_c : m_c);
  pair.rejected_reward = beta * (ratios ? r_d : m_d);
  switch (options.loss) {
    case LossKind::kDpo:
    case LossKind::kDpoRobust: {
      const bool robust = options.loss == LossKind::kDpoRobust;
      const double whole = robust ? 1.0 - 2.0 * smoothing : 1.0;
      const Slope slope = logistic(beta * (r_c - r_d), (1.0 - smoothing) / whole,
                                   (robust ? -smoothing : smoothing) / whole);
      pair.loss = slope.value;
      pair.by_chosen = beta * slope.by_z;
      pair.by_rejected = -beta * slope.by_z;
      return pair;
    }
    case LossKind::kIpo: {
      const double distance = r_c / n_c - r_d / n_d - 1.0 / (2.0 * beta);
      pair.loss = distance * distance;
      pair.by_chosen = 2.0 * distance / n_c;
      pair.by_rejected = -2.0 * distance / n_d;
      return pair;
    }
    case LossKind::kSimpo: {
      const Slope slope = logistic(beta * (m_c - m_d) - options.gamma, 1.0 - smoothing, smoothing);
      pair.loss = slope.value;
      pair.by_chosen = beta * slope.by_z / n_c;
      pair.by_rejected = -beta * slope.by_z / n_d;
      return pair;
    }
    case LossKind::kOrpo: {
      const Slope o_c = log_odds(m_c), o_d = log_odds(m_d);
      const Slope slope = logistic(o_c.value - o_d.value, 1.0, 0.0);
      pair.loss = -m_c + beta * slope.value;
      pair.by_chosen = (-1.0 + beta * slope.by_z * o_c.by_z) / n_c;
      pair.by_rejected = -beta * slope.by_z * o_d.by_z / n_d;
      return pair;
    }
    default:
      break;
  }
  throw CheckFailure("internal error: no loss over pairs");
}

void add_sft(double weight, double mean_tokens, const AnswerScore& chosen, PairLoss& pair) {
  LONGSHORE_CHECK(mean_tokens > 0.0);
  pair.loss -= weight / mean_tokens * chosen.logp;
  pair.by_chosen -= weight / mean_tokens;
}

RowLoss row_loss(const PreferenceOptions& options, const AnswerScore& answer, bool desirable,
                 double kl) {
  LONGSHORE_CHECK(answer.tokens > 0);
  const double weight = desirable ? options.desirable_weight : options.undesirable_weight;
  const double sign = desirable ? 1.0 : -1.0;
  const double ratio = answer.logp - answer.reference;
  const double z = sign * options.beta * (ratio - kl);
  return {.loss = weight * sigmoid(-z),
          .by_logp = -sign * options.beta * weight * sigmoid(z) * sigmoid(-z),
          .reward = options.beta * ratio};
}

double kl_of(double sum, double count) {
  const double mean = count > 0.0 ? sum / count : 0.0;
  return mean < 0.0 ? 0.0 : mean;  // keeps a value that is not finite
}

void PreferenceSums::add(const PairLoss& pair, double chosen_logp, double rejected_logp) {
  pairs += 1;
  wins += pair.chosen_reward > pair.rejected_reward ? 1 : 0;
  chosen += 1;
  rejected += 1;
  chosen_rewards += pair.chosen_reward;
  rejected_rewards += pair.rejected_reward;
  chosen_logps += chosen_logp;
  rejected_logps += rejected_logp;
}

void PreferenceSums::add(const RowLoss& row, bool desirable, double logp, double kl) {
  (desirable ? chosen : rejected) += 1;
  (desirable ? chosen_rewards : rejected_rewards) += row.reward;
  (desirable ? chosen_logps : rejected_logps) += logp;
  kls += kl;
}

PreferenceMeans means_of(const PreferenceSums& sums) {
  LONGSHORE_CHECK(!sums.empty());
  const auto pairs = static_cast<double>(sums.pairs), chosen = static_cast<double>(sums.chosen);
  const auto rejected = static_cast<double>(sums.rejected);
  const bool paired = sums.pairs > 0;
  return {.chosen_reward = sums.chosen_rewards / chosen,
          .rejected_reward = sums.rejected_rewards / rejected,
          .margin = paired ? (sums.chosen_rewards - sums.rejected_rewards) / pairs
                           : sums.chosen_rewards / chosen - sums.rejected_rewards / rejected,
          .accuracy = static_cast<double>(sums.wins) / pairs,
          .chosen_logp = sums.chosen_logps / chosen,
          .rejected_logp = sums.rejected_logps / rejected,
          .kl = paired ? std::nan("") : sums.kls / (chosen + rejected),
          .sft_loss = sums.chosen_tokens > 0
                          ? -sums.chosen_logps / static_cast<double>(sums.chosen_tokens)
                          : std::nan("")};
}

FigureValues figures_of(const PreferenceMeans& means) {
  const std::array values = {
      means.chosen_reward, means.rejected_reward, means.margin, means.accuracy,
      means.chosen_logp,   means.rejected_logp,   means.kl,     means.sft_loss};
  static_assert(values.size() == kPreferenceFigures.size());
  FigureValues figures;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isnan(values[i])) figures.emplace_back(kPreferenceFigures[i].key, values[i]);
  }
  return figures;
}

namespace {

// Returns the columns that a preference loss reads. The kl of KTO's step is no part of them: the
// pass that computes it has none.
std::vector<ColumnId> columns_of(const PreferenceOptions& options) {
  const LossTraits& loss = traits_of(options.loss);
  std::vector<ColumnId> columns;
  if (options.sft_weight > 0.0) columns.push_back(kChosenTokensColumn);
  if (!loss.paired()) columns.push_back(kDesirableColumn);
  if (loss.reference) columns.push_back(kReferenceLogpColumn);
  return columns;
}

// Returns the scores of a micro-batch's documents. `document_of` has the document of each trained
// position.
std::vector<AnswerScore> score_documents(const ScoredPositions& positions,
                                         const std::vector<size_t>& document_of) {
  const at::Tensor values = positions.losses.to(at::kCPU).contiguous();
  const auto* const loss = values.const_data_ptr<float>();
  std::vector<AnswerScore> scores(positions.document_starts.size() - 1);
  for (size_t i = 0; i < document_of.size(); ++i) {
    AnswerScore& score = scores[document_of[i]];
    score.logp -= static_cast<double>(loss[i]);
    score.tokens += 1;
  }
  const std::vector<double>& references = positions.columns.get<kReferenceLogpColumn>();
  for (size_t i = 0; i < references.size(); ++i) scores[i].reference = references[i];
  return scores;
}

}  // namespace

PreferenceLoss::PreferenceLoss(const PreferenceOptions& options)
    : Loss(traits_of(options.loss), columns_of(options)), options_(options) {}

FigureValues PreferenceLoss::figures(const LossSum& sum) const {
  const auto sums = sum.named<PreferenceSums>();
  return sums.empty() ? FigureValues() : figures_of(means_of(sums));
}

std::vector<double> PreferenceLoss::add_losses(const ScoredPositions& positions,
                                               const std::vector<AnswerScore>& scores,
                                               LossResult& result) const {
  std::vector<double> by_logp(scores.size());
  PreferenceSums sums;
  if (!traits().paired()) {
    const std::vector<int64_t>& labels = positions.columns.get<kDesirableColumn>();
    const std::vector<double>& of_step = positions.columns.get<kKlColumn>();
    const double kl = of_step.empty() ? 0.0 : of_step.front();
    for (size_t i = 0; i < scores.size(); ++i) {
      const bool desirable = labels[i] != 0;
      const RowLoss row = row_loss(options_, scores[i], desirable, kl);
      result.loss += row.loss;
      sums.add(row, desirable, scores[i].logp, kl);
      by_logp[i] = row.by_logp;
    }
  } else {
    LONGSHORE_CHECK(scores.size() % 2 == 0) << scores.size() << " documents are no pairs";
    const double sft_weight = options_.sft_weight;
    const std::vector<double>& mean_tokens = positions.columns.get<kChosenTokensColumn>();
    for (size_t i = 0; i < scores.size(); i += 2) {
      PairLoss pair = pair_loss(options_, scores[i], scores[i + 1]);
      if (sft_weight > 0.0) {
        add_sft(sft_weight, mean_tokens.front(), scores[i], pair);
        sums.chosen_tokens += scores[i].tokens;
      }
      result.loss += pair.loss;
      sums.add(pair, scores[i].logp, scores[i + 1].logp);
      by_logp[i] = pair.by_chosen;
      by_logp[i + 1] = pair.by_rejected;
    }
  }
  result.add(sums);
  return by_logp;
}

at::Tensor PreferenceLoss::score(const ScoredPositions& positions, LossResult& result) const {
  const std::vector<size_t> document_of = documents_of(positions.places, positions.document_starts);
  const std::vector<AnswerScore> scores = score_documents(positions, document_of);
  result.trained = positions.losses.numel();
  const std::vector<double> by_logp = add_losses(positions, scores, result);
  for (const AnswerScore& score : scores) result.document_logps.push_back(score.logp);
  at::Tensor factors = at::empty({result.trained}, at::kFloat);
  auto* const factor = factors.mutable_data_ptr<float>();
  for (size_t i = 0; i < document_of.size(); ++i) {
    factor[i] = static_cast<float>(-by_logp[document_of[i]]);  // a loss is a negative logp
  }
  return factors;
}

}  // namespace longshore
