// RopeTable: the frequencies at which a head's values rotate with the position, as in transformers.
// A decoder's blocks build and own it; it is immutable. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/arch_spec.h"
#include "model/differentiable_ops.h"

namespace longshore {

class RopeTable {
 public:
  RopeTable(const RopeSpec& rope, int64_t head_dim);

  // Returns the rotation for the documents of a micro-batch, on `device`. transformers selects the
  // factors of long texts for a whole call by its longest text. This selects them for each
  // document, so numbers do not depend on packing.
  Rotation rotation(const std::vector<int64_t>& document_starts, const at::Device& device) const;

 private:
  at::Tensor frequencies_;  // fp32 [rotary_dim / 2]
  at::Tensor of_long_;      // for documents above short_positions_; undefined: frequencies_
  int64_t short_positions_ = 0;
  double scale_;
  bool pairs_;
};

}  // namespace longshore
