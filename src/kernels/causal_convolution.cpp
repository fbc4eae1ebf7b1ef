#include "kernels/causal_convolution.h"

#include "base/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/causal_convolution.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include "kernels/cpu_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {
namespace {

// Rows are computed in blocks of this many channels: a few cache lines, whose weights and sums are
// in the nearest cache.
constexpr int64_t kBlock = 128;

// fp32 values of the channels of a block, for each tap and for the bias.
using Lines = float[kMostTaps + 1][kBlock];

// The channels [first, first + width) of a convolution. Weights beyond the last channel are zeros.
template <typename T>
struct Block {
  const CausalConvolution& shape;
  const ConvolutionInputs& inputs;
  int64_t first;
  int64_t width;
  alignas(64) Lines weights = {};  // by distance, then the bias

  HWY_INLINE Block(const CausalConvolution& of, const ConvolutionInputs& from, int64_t channel)
      : shape(of), inputs(from), first(channel), width(std::min(kBlock, of.channels - channel)) {
    const T* const taps = static_cast<const T*>(from.taps) + first * of.count;
    for (int64_t c = 0; c < width; ++c) {
      for (int64_t d = 0; d < of.count; ++d) {
        weights[d][c] = to_float(taps[c * of.count + of.count - 1 - d]);
      }
      if (from.bias != nullptr) {
        weights[of.count][c] = to_float(static_cast<const T*>(from.bias)[first + c]);
      }
    }
  }

  // Returns how many earlier rows a row reads.
  HWY_INLINE int64_t reach(int64_t row) const {
    return std::min(std::min(shape.count - 1, row), inputs.positions[row]);
  }
  // Returns x at channel `at` of the block.
  HWY_INLINE Group x(int64_t row, int64_t at) const {
    return load(static_cast<const T*>(inputs.x) + row * shape.row_stride + first + at, width - at);
  }
  // Returns the sums of a row, rounded.
  HWY_INLINE Group sum(int64_t row, int64_t reach, int64_t at) const {
    Group total = x(row, at) * load(weights[0] + at);
    for (int64_t d = 1; d <= reach; ++d) total = total + x(row - d, at) * load(weights[d] + at);
    if (inputs.bias != nullptr) total = total + load(weights[shape.count] + at);
    return rounded<T>(total);
  }
};

template <typename T>
void forward(const CausalConvolution& shape, const ConvolutionInputs& inputs, int64_t begin,
             int64_t end, T* y) {
  for (int64_t first = 0; first < shape.channels; first += kBlock) {
    const Block<T> block(shape, inputs, first);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t reach = block.reach(row);
      T* const out = y + row * shape.channels + first;
      for (int64_t at = 0; at < block.width; at += kGroup) {
        Group value = block.sum(row, reach, at);
        if (shape.activated) value = value * sigmoid(value);
        store(value, out + at, block.width - at);
      }
    }
  }
}

// Backward of a block. The gradients of the sums of the latest rows are kept; those of row r are in
// line r mod kMostTaps.
template <typename T>
struct BlockGradients {
  const Block<T> block;
  const T* grad;
  alignas(64) float inner[kMostTaps][kBlock] = {};
  alignas(64) Lines sums = {};  // by distance, then the bias

  // Computes the gradients of the sums of a row.
  HWY_INLINE void read(int64_t row) {
    const Group one = all(1.0f);
    const int64_t reach = block.reach(row);
    const T* const upper = grad + row * block.shape.channels + block.first;
    float* const line = inner[row % kMostTaps];
    for (int64_t at = 0; at < block.width; at += kGroup) {
      Group value = load(upper + at, block.width - at);
      if (block.shape.activated) {
        const Group sum = block.sum(row, reach, at);
        const Group s = sigmoid(sum);
        value = rounded<T>(value * s * (one + sum * (one - s)));
      }
      store(value, line + at);
    }
  }
  // Adds the gradients of the weights of a row that was read.
  HWY_INLINE void add(int64_t row) {
    const int64_t reach = block.reach(row);
    const float* const line = inner[row % kMostTaps];
    float* const offset = sums[block.shape.count];
    for (int64_t at = 0; at < block.width; at += kGroup) {
      const Group value = load(line + at);
      for (int64_t d = 0; d <= reach; ++d) {
        store(load(sums[d] + at) + value * block.x(row - d, at), sums[d] + at);
      }
      if (block.inputs.bias != nullptr) store(load(offset + at) + value, offset + at);
    }
  }
  // Writes the gradient of a row of x; the rows that read it have been read.
  HWY_INLINE void write(int64_t row, T* grad_x) const {
    T* const out = grad_x + row * block.shape.channels + block.first;
    int64_t later = 1;
    while (later < block.shape.count && row + later < block.shape.rows &&
           block.reach(row + later) >= later) {
      ++later;
    }
    for (int64_t at = 0; at < block.width; at += kGroup) {
      Group total = load(inner[row % kMostTaps] + at) * load(block.weights[0] + at);
      for (int64_t d = 1; d < later; ++d) {
        total = total + load(inner[(row + d) % kMostTaps] + at) * load(block.weights[d] + at);
      }
      store(total, out + at, block.width - at);
    }
  }
};

template <typename T>
void backward_piece(const CausalConvolution& shape, const ConvolutionInputs& inputs, const T* grad,
                    int64_t piece, const ConvolutionGradients& gradients) {
  const int64_t begin = piece * convolution_piece_rows(shape.rows);
  const int64_t end = std::min(shape.rows, begin + convolution_piece_rows(shape.rows));
  const bool summed = gradients.partial != nullptr;
  for (int64_t first = 0; first < shape.channels; first += kBlock) {
    BlockGradients<T> work{.block = {shape, inputs, first}, .grad = grad};
    const int64_t ahead = gradients.x == nullptr ? 1 : shape.count;
    int64_t next = begin;
    for (int64_t row = begin; row < end; ++row) {
      for (; next < std::min(shape.rows, row + ahead); ++next) work.read(next);
      if (summed) work.add(row);
      if (gradients.x != nullptr) work.write(row, static_cast<T*>(gradients.x));
    }
    if (!summed) continue;
    const int64_t lines = shape.count + 1;
    for (int64_t line = 0; line < lines; ++line) {
      float* const to = gradients.partial + (piece * lines + line) * shape.channels + first;
      std::copy_n(work.sums[line], work.block.width, to);
    }
  }
}

}  // namespace

void causal_convolution(const CausalConvolution& shape, const ConvolutionInputs& inputs,
                        int64_t begin, int64_t end, void* y) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    forward(shape, inputs, begin, end, static_cast<T*>(y));
  });
}

void causal_convolution_backward(const CausalConvolution& shape, const ConvolutionInputs& inputs,
                                 const void* grad, int64_t begin, int64_t end,
                                 const ConvolutionGradients& gradients) {
  with_type(shape.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (int64_t piece = begin; piece < end; ++piece) {
      backward_piece(shape, inputs, static_cast<const T*>(grad), piece, gradients);
    }
  });
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longshore::kernels {

HWY_EXPORT(causal_convolution);
HWY_EXPORT(causal_convolution_backward);

void causal_convolution_cpu(const CausalConvolution& shape, const ConvolutionInputs& inputs,
                            int64_t begin, int64_t end, void* y) {
  HWY_DYNAMIC_DISPATCH(causal_convolution)(shape, inputs, begin, end, y);
}

void causal_convolution_backward_cpu(const CausalConvolution& shape,
                                     const ConvolutionInputs& inputs, const void* grad,
                                     int64_t begin, int64_t end,
                                     const ConvolutionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(causal_convolution_backward)(shape, inputs, grad, begin, end, gradients);
}

void add_convolution_partials_cpu(const CausalConvolution& shape,
                                  const ConvolutionGradients& gradients) {
  const int64_t pieces = convolution_pieces(shape.rows), count = shape.count;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const float* line = gradients.partial + piece * (count + 1) * shape.channels;
    for (int64_t d = 0; d <= count; ++d, line += shape.channels) {
      const bool is_bias = d == count;
      float* const sums = is_bias ? gradients.bias : gradients.taps + count - 1 - d;
      if (sums == nullptr) continue;
      for (int64_t c = 0; c < shape.channels; ++c) sums[is_bias ? c : c * count] += line[c];
    }
  }
}

}  // namespace longshore::kernels
#endif
