#include "offload/engine/pass_work.h"

#include <cmath>

#include "base/errors.h"

namespace longshore {

void PassWork::run(const Op& op) {
  switch (op.kind) {
    case OpKind::kReadState:
      parts_.tiers.slots->read_state(op.unit, *op.state);
      return;
    case OpKind::kReadParameters:
      parts_.tiers.slots->read_parameters(op.unit, *op.parameters);
      return;
    case OpKind::kWriteState:
      parts_.tiers.slots->write_state(op.unit, *op.state);
      return;
    case OpKind::kCommit:
      parts_.commits.run();
      return;
    case OpKind::kUpdate:
      update(op);
      return;
    case OpKind::kFetch:
      // With updates in backward the pending update is this step's own and follows the fetch.
      LONGSHORE_CHECK(updates_in_backward() || !parts_.optimizer.pending(op.unit))
          << "unit " << op.unit << " is fetched before its update";
      parts_.prefetcher.fetch(op.slots.front(), op.parameters);
      return;
    case OpKind::kGather:
      parts_.prefetcher.gather(op.slots.front());
      return;
    case OpKind::kReadInput:
    case OpKind::kLoadInput:
    case OpKind::kSaveInput:
    case OpKind::kWriteInput:
      move_input(op);
      return;
    case OpKind::kForward:
    case OpKind::kBackward:
      compute(op);
      return;
    case OpKind::kReduce:
      reduce(op);
      return;
    case OpKind::kDrain:
      drain(op);
      return;
  }
}

void PassWork::update(const Op& op) {
  SlotOwners<HostGradientSlot>& ring = parts_.host_gradients.ring();
  if (op.host_slot) ring.check(*op.host_slot, op.unit);
  const bool updated = parts_.optimizer.pending(op.unit);
  if (updated) parts_.optimizer.update(op.unit, *parts_.tiers.lease_state(op.unit, op.state));
  if (op.parameters) parts_.tiers.slots->pass_parameters(op.unit, *op.state, *op.parameters);
  if (op.host_slot) ring.free(*op.host_slot, op.unit);
  // With updates in backward the unit belongs to the next version, which advance_version publishes.
  if (updated && parts_.node != nullptr && !updates_in_backward()) {
    parts_.node->publish(op.unit, parts_.prefetcher.version());
  }
}

void PassWork::move_input(const Op& op) {
  const bool fills = op.kind == OpKind::kSaveInput || op.kind == OpKind::kReadInput;
  if (op.staging && fills) staging_.claim(*op.staging, op.unit);
  if (op.staging && !fills) staging_.check(*op.staging, op.unit);
  const int32_t micro_batches = parts_.runner.micro_batches();
  switch (op.kind) {
    case OpKind::kSaveInput:
      parts_.inputs->save(op.unit, op.staging, parts_.runner.carry(), micro_batches);
      break;
    case OpKind::kWriteInput:
      parts_.inputs->tier().write(op.unit, *op.staging, micro_batches);
      break;
    case OpKind::kReadInput:
      parts_.inputs->tier().read(op.unit, *op.staging, micro_batches);
      break;
    default:
      parts_.inputs->load(op.unit, op.staging, parts_.runner.carry(), micro_batches);
  }
  if (op.staging && !fills) staging_.free(*op.staging, op.unit);
}

void PassWork::compute(const Op& op) {
  std::vector<UnitLease> leases;
  for (const Placed& placed : op.slots) {
    leases.push_back(parts_.ring.lease(placed, parts_.prefetcher.version()));
  }
  if (op.kind == OpKind::kForward) {
    parts_.runner.forward(op.unit, leases);
    parts_.device.finish("forward of " + parts_.spec().unit(op.unit).name);
    return;
  }
  if (op.gradient) gradients_.claim(*op.gradient, op.unit);
  parts_.runner.backward(op.unit, leases, op.gradient);
  parts_.device.finish("backward of " + parts_.spec().unit(op.unit).name);
}

void PassWork::reduce(const Op& op) {
  if (op.gradient) gradients_.check(*op.gradient, op.unit);
  parts_.reducer.reduce(op.unit, parts_.runner.sums(op.unit, op.gradient));
}

void PassWork::drain(const Op& op) {
  if (op.gradient) gradients_.check(*op.gradient, op.unit);
  if (op.host_slot) parts_.host_gradients.ring().claim(*op.host_slot, op.unit);
  const double squares = parts_.drain.drain(op.unit, parts_.runner.sums(op.unit, op.gradient));
  if (op.gradient) gradients_.free(*op.gradient, op.unit);
  if (!updates_in_backward() || std::isfinite(squares)) return;
  throw NonFiniteError("a gradient of unit " + parts_.spec().unit(op.unit).name +
                       " is not finite; with optimizer.overlap = \"backward\" units above it are "
                       "updated already, so the run ends; start it again from the last checkpoint, "
                       "lower optimizer.lr, check the data, or set optimizer.overlap = "
                       "\"forward\", which skips such a step");
}

}  // namespace longshore
