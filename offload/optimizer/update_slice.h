// UpdateSlice: state and gradient of a range of elements of one parameter. Non-owning spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "shard/moments.h"

namespace longshore {

// All spans have equal element counts, in one of two forms:
//   fp32    master; also high if the device reads a bf16 parameter, else high is empty
//   split   high and low, the halves of the master; master is empty. Only here may moments be
//           narrower than fp32; the slice then begins at a multiple of 256 of its parameter.
struct UpdateSlice {
  std::span<float> master;
  std::span<uint16_t> high;
  std::span<uint16_t> low;
  MomentSpan exp_avg;
  MomentSpan exp_avg_sq;
  std::span<const std::byte> gradient;
  DType gradient_dtype = DType::kF32;  // kF32 or kBF16
  RoundingStream rounding;             // of moments narrower than fp32

  size_t elements() const { return exp_avg.elements(); }
};

}  // namespace longshore
