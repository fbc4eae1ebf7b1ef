#include "offload/plan/decode_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/errors.h"
#include "offload/plan/plan_sizes.h"

namespace longshore {
namespace {

// By how much more sequences at the same time passing weights must allow to be preferred. An
// estimate: an RTX 4090 reads its memory 40 times as fast as its link, a CPU's memory is read about
// three times as fast as it is copied.
constexpr int64_t kWorthPassing = 8;

// Returns the inputs of a process that decodes alone. It has one micro-batch, whose carries pass
// through a few slots, because no unit's input is kept for backward.
PlanInputs alone(const PlanInputs& run, const DecodeUse& asked) {
  PlanInputs inputs = run;
  inputs.decode = asked;
  inputs.decode.alone = true;
  inputs.sequences_per_step = plan_product({run.micro_batch, run.topology.ranks});
  inputs.recompute = true;
  inputs.keep_what_fits = false;
  inputs.kept_graphs = 0;
  inputs.keep_results = KeptResults::kNone;
  inputs.offload_inputs = true;
  inputs.nvme = {};
  inputs.overlap = UpdateOverlap::kNone;
  return inputs;
}

PlanInputs with_sequences(PlanInputs inputs, int64_t sequences) {
  inputs.decode.sequences = sequences;
  return inputs;
}

// Returns the most sequences that could be decoded at the same time: each has a row in a call.
int64_t most_rows(const PlanInputs& inputs, int64_t asked) {
  const int64_t positions = plan_product({inputs.micro_batch, inputs.sequence_tokens()});
  return std::min({asked, kMostSequences, positions});
}

// Returns the most sequences, up to `most`, with which the plan fits; 0 if it does not with one.
int64_t fitting_sequences(const PlanInputs& inputs, const Machine& machine, int64_t most) {
  const auto fits = [&](int64_t sequences) {
    return draft_tier_plan(with_sequences(inputs, sequences), machine).fits();
  };
  if (fits(most)) return most;
  int64_t fitting = 0, beyond = most;
  while (beyond - fitting > 1) {
    const int64_t middle = (fitting + beyond) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return fitting;
}

// Sets inputs.decode.sequences to the most that fit; 0 if none does. Of the run's micro-batch and
// one sequence, which needs less workspace, the one with more sequences is taken.
PlanInputs with_most_sequences(PlanInputs inputs, const Machine& machine, bool weights_stay) {
  const int64_t asked = inputs.decode.sequences;
  inputs.decode.weights_stay = weights_stay;
  PlanInputs best = with_sequences(inputs, 0);
  for (const int64_t micro_batch : {inputs.micro_batch, int64_t{1}}) {
    inputs.micro_batch = micro_batch;
    inputs.sequences_per_step = plan_product({micro_batch, inputs.topology.ranks});
    const int64_t fitting = fitting_sequences(inputs, machine, most_rows(inputs, asked));
    if (fitting > best.decode.sequences) best = with_sequences(inputs, fitting);
    if (fitting == asked || micro_batch == 1) break;
  }
  return best;
}

// Returns the longest sequence that can be decoded alone; 0 if none can.
int64_t longest_that_fits(PlanInputs inputs, const Machine& machine) {
  int64_t fitting = 0, beyond = inputs.decode.longest;
  while (beyond - fitting > 1) {
    inputs.decode.longest = (fitting + beyond) / 2;
    (draft_tier_plan(inputs, machine).fits() ? fitting : beyond) = inputs.decode.longest;
  }
  return fitting;
}

std::string side_text(const char* what, const char* key, const PlanAccount& account) {
  if (account.within_limit()) return "";
  const auto [needed, given] = format_bytes_apart(account.total, account.limit);
  std::string text = "\n  " + std::string(what) + ": needed " + needed + ", " +
                     (account.limit_auto ? "the machine has " : std::string(key) + " is ") + given;
  if (!account.limit_auto) {
    text += "; at least " + format_bytes(account.total) + " (" + std::to_string(account.total) +
            " bytes) would do";
  }
  return text;
}

[[noreturn]] void refuse_length(const PlanInputs& inputs, const Machine& machine) {
  const TierPlan plan = draft_tier_plan(inputs, machine);
  const int64_t tokens = inputs.decode.longest;
  const int64_t fitting = longest_that_fits(inputs, machine);
  std::string text = "decoding: the states of one sequence of " + std::to_string(tokens) +
                     " tokens take " + format_bytes(inputs.decode.state_bytes()) +
                     " of the device, which do not fit beside the rest of the plan" +
                     side_text("device memory", "offload.device_memory", plan.device) +
                     side_text("host memory", "offload.host_memory", plan.host) +
                     "\n  what would help:\n    ";
  if (fitting == 0) {
    text += "fewer tokens are not enough; raise the limit above";
  } else {
    text += "sequences of at most " + std::to_string(fitting) + " tokens, prompt and answer (" +
            format_bytes(inputs.decode.sequence_bytes(fitting)) +
            " of states): lower --max-new-tokens (eval.max_new_tokens), data.max_tokens or the "
            "length of the prompts";
  }
  throw DoesNotFitError(text);
}

void check_asked(const DecodeUse& asked) {
  LONGSHORE_CHECK(asked.sequences >= 1 && asked.longest >= 1 && asked.sequence_bytes != nullptr)
      << asked.sequences << " sequences of " << asked.longest;
}

}  // namespace

std::optional<TierPlan> draft_decoding_plan(const PlanInputs& run, const Machine& machine,
                                            const DecodeUse& asked) {
  check_asked(asked);
  const PlanInputs inputs = alone(run, asked);
  PlanInputs chosen = with_most_sequences(inputs, machine, /*weights_stay=*/true);
  if (chosen.decode.sequences < std::min(asked.sequences, kMostSequences)) {
    PlanInputs passing = with_most_sequences(inputs, machine, /*weights_stay=*/false);
    if (chosen.decode.sequences * kWorthPassing < passing.decode.sequences) {
      chosen = std::move(passing);
    }
  }
  if (chosen.decode.sequences == 0) return std::nullopt;
  return draft_tier_plan(chosen, machine);
}

TierPlan make_decoding_plan(const PlanInputs& run, const Machine& machine, const DecodeUse& asked) {
  std::optional<TierPlan> plan = draft_decoding_plan(run, machine, asked);
  if (plan) return std::move(*plan);
  PlanInputs inputs = with_sequences(alone(run, asked), 0);
  inputs.micro_batch = 1;
  inputs.sequences_per_step = inputs.topology.ranks;
  if (!draft_tier_plan(inputs, machine).fits()) {
    throw DoesNotFitError(explain_misfit(inputs, machine));
  }
  refuse_length(with_sequences(inputs, 1), machine);
}

DecodeUse decoding_beside_training(const PlanInputs& run, const Machine& machine,
                                   const DecodeUse& asked) {
  check_asked(asked);
  PlanInputs inputs = run;
  inputs.decode = asked;
  inputs.decode.sequences =
      std::max<int64_t>(1, fitting_sequences(inputs, machine, most_rows(inputs, asked.sequences)));
  return inputs.decode;
}

}  // namespace longshore
