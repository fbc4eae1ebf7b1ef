// PinnedPlan: the host memory of a rank that is registered with its GPU, so that copies run at the
// full speed of the link. Plain values and a pure function.
#pragma once

#include <optional>

#include "base/bytes.h"

namespace longshore {

// The bytes of a rank's parts of host memory that a GPU copies from or to.
struct PinnableBytes {
  Bytes state = 0;      // parameters and state, also those of other ranks that it reads
  Bytes gradients = 0;  // 0 where there are none, as for inputs
  Bytes inputs = 0;     // activation checkpoints
  Bytes total() const { return state + gradients + inputs; }
};

// Without a GPU nothing is registered.
struct PinnedPlan {
  bool state = false, gradients = false, inputs = false;  // registered, also a part of no bytes
  // Copies of other host memory may register so much for their buffers; 0: they use the driver's.
  Bytes copy_buffers = 0;
  Bytes registered = 0;  // in all, without the buffers if every part is registered

  bool everything() const { return state && gradients && inputs; }
};

// Chooses what is registered with at most `limit` bytes; nullopt: without a limit. Where not all
// parts fit, the buffers come first, then the parts of which a step copies most bytes for each
// registered byte, as far as they fit whole.
PinnedPlan plan_pinned(const PinnableBytes& bytes, std::optional<Bytes> limit);

}  // namespace longshore
