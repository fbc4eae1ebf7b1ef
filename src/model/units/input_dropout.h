// InputDropout: the dropout of one adapter in training. It drops a share of the elements of the
// adapter's input and scales the others by 1 / (1 - share), as torch.nn.Dropout does. Plain value;
// compute thread, or a thread of autograd.
//
// [Note: dropout keys] Nothing of a mask is kept. An element is dropped or not by a pure function
// of the position's key (MicroBatch::dropout_keys, from the run's seed, the epoch, the document and
// the position in it), the name of the adapter and the column. So a mask has the same bits in
// forward, in recompute and in backward, after a resume, on any tier and number of ranks, however
// documents are packed and cut into micro-batches, and on the CPU and the GPU.
//
// The function is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014) in integer operations of LibTorch, which are exact on every device.
// Each row of the input starts its own generator. Each of its 64-bit words decides four
// neighbouring columns with 16 bits each, because the integer operations are the whole cost. The
// share is therefore rounded to a multiple of 1/65536, and the scale is that of the rounded share.
// A mask made by the host would have to be copied to the GPU for every product. Philox would need
// more operations: LibTorch has no product of two words that keeps the upper half.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string_view>

namespace longshore {

struct InputDropout {
  at::Tensor keys = {};  // int64 [T]; undefined: nothing is dropped
  double share = 0.0;    // from 0, below 1
  int64_t stream = 0;    // of the adapter: stream_of(its name)

  // Adapters with other names drop other elements.
  static int64_t stream_of(std::string_view name);

  bool drops() const { return keys.defined() && share > 0.0; }
  // Overwrites `values` [T, in] with those that are kept, scaled, and zeros. The gradient of this
  // is the same function of the gradient.
  void apply(const at::Tensor& values) const;
  // Returns a new tensor of values that are kept, scaled, and zeros.
  at::Tensor applied(const at::Tensor& values) const;
};

}  // namespace longshore
