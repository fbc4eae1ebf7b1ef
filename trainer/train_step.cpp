#include "trainer/train_step.h"

#include <cmath>

#include "offload/optimizer/clip.h"

namespace longshore {

StepOutcome train_step(Engine& engine, const StepRequest& request) {
  UnitRunner& runner = engine.runner();
  GradDrain& drain = engine.drain();
  // Gradients of the mean: every micro-batch is scaled by the tokens of the whole step.
  runner.begin_step(request.batches, 1.0 / static_cast<double>(request.trained_tokens));

  for (UnitId unit : runner.forward_order()) runner.forward(unit);
  for (UnitId unit : runner.backward_order()) {
    const std::span<float> sums = runner.backward(unit);
    engine.reducer().reduce(unit, sums);
    drain.drain(unit, sums);
  }
  const StepTotals totals = sum_over_ranks(engine.groups(), {.loss = runner.loss(),
                                                             .unit_squares = drain.finish(),
                                                             .stop = request.stop,
                                                             .save = request.save,
                                                             .times = {engine.take_times()}});

  StepOutcome outcome;
  outcome.loss = totals.loss.loss / static_cast<double>(request.trained_tokens);
  outcome.norm = norm_of(totals.unit_squares);
  outcome.stop = totals.stop;
  outcome.save = totals.save;
  outcome.times = totals.times;
  outcome.skipped = !outcome.norm.finite || !std::isfinite(outcome.loss);
  if (!outcome.skipped) {
    outcome.clip_scale = clip_scale(outcome.norm.norm, request.max_grad_norm);
    engine.optimizer().stage(
        {.update = engine.count_update(), .lr = request.lr, .clip_scale = outcome.clip_scale});
    engine.optimizer().flush();
  }
  engine.advance_version();
  return outcome;
}

}  // namespace longshore
