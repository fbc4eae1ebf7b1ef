// RopeTable: the frequencies at which a head's values rotate with the position, as in transformers.
// A decoder's blocks build and own it; it is immutable. rotate_heads is the operation, with its own
// backward. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/ops/fused_ops.h"

namespace longshore {

using fused::Rotation;

class RopeTable {
 public:
  RopeTable(const RopeSpec& rope, int64_t head_dim);

  // Returns the rotation for the documents of a micro-batch, on `device`. `lengths` are those of
  // their texts, of which the micro-batch may have a part (text_lengths). transformers selects the
  // factors of long texts for a whole call by its longest text. This selects them for each
  // document, so numbers do not depend on packing.
  Rotation rotation(const std::vector<int64_t>& document_starts,
                    const std::vector<int64_t>& lengths, const at::Device& device) const;

 private:
  at::Tensor frequencies_;  // fp32 [rotary_dim / 2]
  at::Tensor of_long_;      // for documents above short_positions_; undefined: frequencies_
  int64_t short_positions_ = 0;
  double scale_;
  bool pairs_;
};

// Rotates the halves, or the pairs, of the first rotary_dim values of every head of x [T, heads *
// head_dim]; the rest stays. `positions` is int64 [T]. Does not save x. If the values of x are not
// `read`, the result has those of x, which backward does not need.
at::Tensor rotate_heads(const at::Tensor& x, const at::Tensor& positions, const Rotation& rotation,
                        int64_t head_dim, bool read = true);

}  // namespace longshore
