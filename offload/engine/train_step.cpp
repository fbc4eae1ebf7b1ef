#include "offload/engine/train_step.h"

#include <cmath>

#include "offload/optimizer/update_rule.h"

namespace longshore {

namespace {

// Returns the step's update without clipping.
StepUpdate unclipped_update(const Engine& engine, const StepRequest& request) {
  return {.update = engine.updates() + 1, .lr = request.lr, .clip_scale = 1.0};
}

std::optional<DurableStep> record_of(const StepRequest& request, bool skipped) {
  return request.record ? std::optional(request.record(skipped)) : std::nullopt;
}

}  // namespace

StepTotals forward_backward(Engine& engine, const StepRequest& request) {
  // With updates in backward the step's own pass updates and commits.
  const bool whole = engine.plan().step.overlap == UpdateOverlap::kBackward;
  // The scale makes gradients those of the mean loss over the whole step's tokens or pairs.
  const LossSum loss = engine.train_pass(request.batches, 1.0 / request.loss_terms,
                                         unclipped_update(engine, request),
                                         whole ? record_of(request, false) : std::nullopt);
  engine.count_host_wait("the step's totals");
  return sum_over_ranks(engine.groups(), {.loss = loss,
                                          .unit_squares = engine.take_squares(),
                                          .routers = engine.runner().router_sums(),
                                          .stop = request.stop,
                                          .save = request.save,
                                          .times = {engine.take_times()}});
}

StepOutcome finish_step(Engine& engine, const StepRequest& request, const StepTotals& totals) {
  StepOutcome outcome;
  outcome.loss = totals.loss.loss / request.loss_terms;
  outcome.norm = norm_of(totals.unit_squares);
  outcome.stop = totals.stop;
  outcome.save = totals.save;
  outcome.times = totals.times;
  outcome.routers = totals.routers;
  outcome.sums = totals.loss;
  // With updates in backward the pass has updated the state already.
  if (engine.plan().step.overlap != UpdateOverlap::kBackward) {
    outcome.skipped = !outcome.norm.finite || !std::isfinite(outcome.loss);
    if (!outcome.skipped) {
      engine.move_router_corrections(totals.routers);  // the step's record has them
      StepUpdate update = unclipped_update(engine, request);
      update.clip_scale = clip_scale(outcome.norm.norm, request.max_grad_norm);
      outcome.clip_scale = update.clip_scale;
      engine.stage_update(update, record_of(request, false));
    } else if (const auto record = record_of(request, true)) {
      engine.commit(*record);
    }
  } else {
    engine.move_router_corrections(totals.routers);
  }
  engine.advance_version();
  return outcome;
}

StepOutcome train_step(Engine& engine, const StepRequest& request) {
  return finish_step(engine, request, forward_backward(engine, request));
}

}  // namespace longshore
