#include "offload/plan/pinned_plan.h"

#include <utility>

#include "device/bounced_copies.h"

namespace longshore {

PinnedPlan plan_pinned(const PinnableBytes& bytes, std::optional<Bytes> limit) {
  PinnedPlan plan{.state = true, .gradients = true, .inputs = true, .registered = bytes.total()};
  plan.copy_buffers =
      kBounceBuffers * bounce_piece_bytes(limit.value_or(kBounceBuffers * kBouncePieceBytes));
  // Then the buffers are made only if the driver refuses a part all the same.
  if (!limit || bytes.total() <= *limit) return plan;
  Bytes room = *limit - plan.copy_buffers;
  // A step copies each byte of inputs twice and each of gradients once, but of the state only the
  // parameters.
  for (const auto& [part, size] : {std::pair{&PinnedPlan::inputs, bytes.inputs},
                                   std::pair{&PinnedPlan::gradients, bytes.gradients},
                                   std::pair{&PinnedPlan::state, bytes.state}}) {
    plan.*part = size <= room;
    if (plan.*part) room -= size;
  }
  plan.registered = *limit - room;
  return plan;
}

}  // namespace longshore
