// RopeTable: how fast the values of a head turn with the position, as transformers computes it.
// Built with a decoder's blocks, immutable; compute thread only.
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

  // For the documents of a micro-batch, on `device`. transformers chooses the factors of long
  // texts for all rows of a call by the longest of them; here each document has its own, so that
  // numbers do not depend on what it is packed with.
  Rotation rotation(const std::vector<int64_t>& document_starts, const at::Device& device) const;

 private:
  at::Tensor frequencies_;  // fp32 [rotary_dim / 2]
  at::Tensor of_long_;      // the same in documents of more positions; undefined: the same ones
  int64_t short_positions_ = 0;
  double scale_;
  bool pairs_;
};

}  // namespace longshore
