#include "model/fused_ops.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/errors.h"
#include "base/mxfp4.h"
#include "device/cuda_stream.h"
#include "device/gpu_tensors.h"
#include "kernels/causal_convolution.h"
#include "kernels/cross_entropy.h"
#include "kernels/gated_norm.h"
#include "kernels/rms_norm.h"
#include "kernels/rotary.h"
#include "kernels/swiglu.h"
#include "kernels/unpack.h"

namespace longshore::fused {
namespace {

// The fewest elements for which the CPU wakes another thread.
constexpr int64_t kGrain = int64_t{1} << 14;
constexpr int64_t kUnpackGrain = int64_t{1} << 16;

DType dtype_of(const at::Tensor& x) {
  LONGSHORE_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16)
      << "kernels compute in fp32 and bf16";
  return x.scalar_type() == at::kFloat ? DType::kF32 : DType::kBF16;
}

CUstream_st* stream_of(const at::Tensor& x) {
  return current_cuda_stream(x.get_device());
}

// Checks that x has the dtype and device of `like` and is contiguous, as the kernels require.
const void* operand(const at::Tensor& x, const at::Tensor& like) {
  LONGSHORE_CHECK(x.is_contiguous() && x.scalar_type() == like.scalar_type() &&
                  x.device() == like.device());
  return x.const_data_ptr();
}

kernels::RmsNorm norm_shape(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t width = weight.numel();
  LONGSHORE_CHECK(width > 0 && x.numel() % width == 0) << x.numel() << " by " << width;
  return {.dtype = dtype_of(x), .rows = x.numel() / width, .width = width, .eps = eps};
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  at::Tensor y = at::empty(x.sizes(), x.options().requires_grad(false));
  const kernels::RmsNorm shape = norm_shape(x, weight, eps);
  const void* const in = operand(x, x);
  const void* const scale = operand(weight, x);
  if (on_gpu(x)) {
    kernels::rms_norm_cuda(shape, in, scale, y.mutable_data_ptr(), stream_of(x));
  } else {
    kernels::rms_norm_cpu(shape, in, scale, y.mutable_data_ptr());
  }
  return y;
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps, const at::Tensor& weight_sum) {
  at::Tensor grad_x = at::empty(x.sizes(), x.options().requires_grad(false));
  const kernels::RmsNorm shape = norm_shape(x, weight, eps);
  const at::Tensor upper = grad.contiguous();
  float* sum = nullptr;
  if (weight_sum.defined()) {
    LONGSHORE_CHECK(weight_sum.numel() == shape.width);
    sum = weight_sum.mutable_data_ptr<float>();
  }
  if (on_gpu(x)) {
    at::Tensor partial;
    if (sum != nullptr) {
      partial = at::empty({kernels::rms_norm_partial_elements(shape.rows, shape.width)},
                          weight_sum.options());
    }
    kernels::rms_norm_backward_cuda(
        shape, operand(upper, x), operand(x, x), operand(weight, x), grad_x.mutable_data_ptr(), sum,
        sum == nullptr ? nullptr : partial.mutable_data_ptr<float>(), stream_of(x));
  } else {
    kernels::rms_norm_backward_cpu(shape, operand(upper, x), operand(x, x), operand(weight, x),
                                   grad_x.mutable_data_ptr(), sum);
  }
  return grad_x;
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& frequencies,
                  int64_t head_dim, int direction) {
  LONGSHORE_CHECK(x.dim() == 2 && x.stride(1) == 1 && x.size(1) % head_dim == 0);
  LONGSHORE_CHECK(positions.numel() == x.size(0) && frequencies.numel() == head_dim / 2);
  at::Tensor out = at::empty(x.sizes(), x.options().requires_grad(false));
  const kernels::Rotary shape{.dtype = dtype_of(x),
                              .rows = x.size(0),
                              .heads = x.size(1) / head_dim,
                              .head_dim = head_dim,
                              .row_stride = x.stride(0),
                              .direction = direction};
  const auto* const places = positions.const_data_ptr<int64_t>();
  const auto* const angles = frequencies.const_data_ptr<float>();
  if (on_gpu(x)) {
    kernels::rotary_cuda(shape, x.const_data_ptr(), places, angles, out.mutable_data_ptr(),
                         stream_of(x));
  } else {
    kernels::rotary_cpu(shape, x.const_data_ptr(), places, angles, out.mutable_data_ptr());
  }
  return out;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor y = at::empty(up.sizes(), up.options().requires_grad(false));
  const void* const g = operand(gate, up);
  const void* const u = operand(up, up);
  if (on_gpu(up)) {
    kernels::swiglu_cuda(dtype_of(up), up.numel(), g, u, y.mutable_data_ptr(), stream_of(up));
  } else {
    void* const out = y.mutable_data_ptr();
    at::parallel_for(0, up.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernels::swiglu_cpu(dtype_of(up), begin, end, g, u, out);
    });
  }
  return y;
}

void swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor upper = grad.contiguous();
  const void* const above = operand(upper, up);
  LONGSHORE_CHECK(gate.is_contiguous() && up.is_contiguous() && gate.numel() == up.numel());
  if (on_gpu(up)) {
    kernels::swiglu_backward_cuda(dtype_of(up), up.numel(), above, gate.mutable_data_ptr(),
                                  up.mutable_data_ptr(), stream_of(up));
  } else {
    void* const g = gate.mutable_data_ptr();
    void* const u = up.mutable_data_ptr();
    at::parallel_for(0, up.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernels::swiglu_backward_cpu(dtype_of(up), begin, end, above, g, u);
    });
  }
}

namespace {

void unpack_on_gpu(PackedFormat format, const void* packed, const at::Tensor& values) {
  const DType dtype = dtype_of(values);
  const int64_t rows = values.size(0), columns = values.size(1);
  void* const out = values.mutable_data_ptr();
  switch (format) {
    case PackedFormat::kNf4:
      kernels::unpack_nf4_cuda(dtype, values.numel(), packed, out, stream_of(values));
      return;
    case PackedFormat::kFp8:
      kernels::unpack_fp8_cuda(dtype, rows, columns, packed, out, stream_of(values));
      return;
    case PackedFormat::kMxfp4:
      kernels::unpack_mxfp4_cuda(dtype, rows, columns, packed, out, stream_of(values));
  }
}

void unpack_on_cpu(PackedFormat format, const void* packed, const at::Tensor& values) {
  const DType dtype = dtype_of(values);
  const int64_t rows = values.size(0), columns = values.size(1);
  void* const out = values.mutable_data_ptr();
  if (format == PackedFormat::kMxfp4) {
    constexpr int64_t kGroup = Mxfp4Layout::kGroup;
    const int64_t grain = std::max<int64_t>(1, kUnpackGrain / (kGroup * columns));
    at::parallel_for(0, rows / kGroup, grain, [&](int64_t begin, int64_t end) {
      kernels::unpack_mxfp4_cpu(dtype, rows, columns, packed, begin, end, out);
    });
    return;
  }
  at::parallel_for(0, values.numel(), kUnpackGrain, [&](int64_t begin, int64_t end) {
    if (format == PackedFormat::kNf4) {
      kernels::unpack_nf4_cpu(dtype, values.numel(), packed, begin, end, out);
    } else {
      kernels::unpack_fp8_cpu(dtype, rows, columns, packed, begin, end, out);
    }
  });
}

}  // namespace

void unpack(PackedFormat format, const at::Tensor& packed, const at::Tensor& values) {
  if (values.dim() == 3) {
    for (int64_t i = 0; i < values.size(0); ++i) unpack(format, packed[i], values[i]);
    return;
  }
  const void* const bytes = operand(packed, values);
  LONGSHORE_CHECK(values.is_contiguous() &&
                  packed.numel() * packed.element_size() >= packed_bytes(format, values.sizes()));
  if (on_gpu(values)) {
    unpack_on_gpu(format, bytes, values);
  } else {
    unpack_on_cpu(format, bytes, values);
  }
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double scale,
                         bool gradient, const at::Tensor& row_scales) {
  LONGSHORE_CHECK(logits.dim() == 2 && logits.is_contiguous());
  LONGSHORE_CHECK(targets.is_contiguous() && targets.numel() == logits.size(0));
  const bool scaled = row_scales.defined();
  LONGSHORE_CHECK(!scaled || (row_scales.is_contiguous() && row_scales.numel() == logits.size(0) &&
                              row_scales.device() == logits.device()));
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const kernels::CrossEntropy shape{
      .dtype = dtype_of(logits),
      .rows = logits.size(0),
      .vocabulary = logits.size(1),
      .scale = scale,
      .gradient = gradient,
      .row_scales = scaled ? row_scales.const_data_ptr<float>() : nullptr};
  const auto* const wanted = targets.const_data_ptr<int64_t>();
  auto* const out = losses.mutable_data_ptr<float>();
  if (on_gpu(logits)) {
    kernels::cross_entropy_cuda(shape, logits.mutable_data_ptr(), wanted, out, stream_of(logits));
  } else {
    kernels::cross_entropy_cpu(shape, logits.mutable_data_ptr(), wanted, out);
  }
  return losses;
}

namespace {

// Returns x, or a copy if values of a row are not neighbours.
at::Tensor with_dense_rows(const at::Tensor& x) {
  LONGSHORE_CHECK(x.dim() == 2);
  return x.stride(1) == 1 || x.size(1) == 1 ? x : x.contiguous();
}

// Calls work(begin, end) on several threads for pieces of `rows` rows of `width` values.
template <typename Work>
void over_pieces(int64_t pieces, int64_t rows, int64_t width, const Work& work) {
  at::parallel_for(0, pieces, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, rows * width)),
                   work);
}

kernels::CausalConvolution convolution_shape(const at::Tensor& x, const Convolution& convolution) {
  const at::Tensor& taps = convolution.taps;
  LONGSHORE_CHECK(taps.dim() == 3 && taps.size(0) == x.size(1) && taps.size(1) == 1);
  LONGSHORE_CHECK(taps.size(2) >= 1 && taps.size(2) <= kernels::kMostTaps) << taps.size(2);
  return {.dtype = dtype_of(x),
          .rows = x.size(0),
          .channels = x.size(1),
          .count = taps.size(2),
          .row_stride = x.stride(0),
          .activated = convolution.activated};
}

kernels::ConvolutionInputs convolution_inputs(const at::Tensor& x, const Convolution& convolution) {
  const at::Tensor &bias = convolution.bias, &positions = convolution.positions;
  LONGSHORE_CHECK(!bias.defined() || bias.numel() == x.size(1));
  LONGSHORE_CHECK(positions.is_contiguous() && positions.numel() == x.size(0) &&
                  positions.device() == x.device());
  return {.x = x.const_data_ptr(),
          .taps = operand(convolution.taps, x),
          .bias = bias.defined() ? operand(bias, x) : nullptr,
          .positions = positions.const_data_ptr<int64_t>()};
}

}  // namespace

at::Tensor causal_convolution(const at::Tensor& x, const Convolution& convolution) {
  const at::Tensor in = with_dense_rows(x);
  at::Tensor y = at::empty(x.sizes(), x.options().requires_grad(false));
  const kernels::CausalConvolution shape = convolution_shape(in, convolution);
  const kernels::ConvolutionInputs inputs = convolution_inputs(in, convolution);
  void* const out = y.mutable_data_ptr();
  if (on_gpu(x)) {
    kernels::causal_convolution_cuda(shape, inputs, out, stream_of(x));
  } else {
    over_pieces(shape.rows, 1, shape.channels, [&](int64_t begin, int64_t end) {
      kernels::causal_convolution_cpu(shape, inputs, begin, end, out);
    });
  }
  return y;
}

ConvolutionGradients causal_convolution_backward(const at::Tensor& grad, const at::Tensor& x,
                                                 const Convolution& convolution, bool want_x,
                                                 bool want_weights) {
  ConvolutionGradients result;
  if (!want_x && !want_weights) return result;
  const at::Tensor in = with_dense_rows(x), upper = grad.contiguous();
  const kernels::CausalConvolution shape = convolution_shape(in, convolution);
  const kernels::ConvolutionInputs inputs = convolution_inputs(in, convolution);
  const void* const above = operand(upper, x);
  kernels::ConvolutionGradients gradients;
  if (want_x) {
    result.x = at::empty(x.sizes(), x.options().requires_grad(false));
    gradients.x = result.x.mutable_data_ptr();
  }
  at::Tensor partial;
  if (want_weights) {
    const auto sums = x.options().dtype(at::kFloat).requires_grad(false);
    partial = at::empty({kernels::convolution_partial_elements(shape)}, sums);
    gradients.partial = partial.mutable_data_ptr<float>();
    result.taps = at::zeros(convolution.taps.sizes(), sums);
    gradients.taps = result.taps.mutable_data_ptr<float>();
    if (convolution.bias.defined()) {
      result.bias = at::zeros(convolution.bias.sizes(), sums);
      gradients.bias = result.bias.mutable_data_ptr<float>();
    }
  }
  if (on_gpu(x)) {
    kernels::causal_convolution_backward_cuda(shape, inputs, above, gradients, stream_of(x));
    return result;
  }
  over_pieces(kernels::convolution_pieces(shape.rows), kernels::convolution_piece_rows(shape.rows),
              shape.channels, [&](int64_t begin, int64_t end) {
                kernels::causal_convolution_backward_cpu(shape, inputs, above, begin, end,
                                                         gradients);
              });
  if (want_weights) kernels::add_convolution_partials_cpu(shape, gradients);
  return result;
}

namespace {

kernels::GatedNorm gated_norm_shape(const at::Tensor& x, const at::Tensor& gate,
                                    const at::Tensor& weight, const GatedNorm& norm) {
  LONGSHORE_CHECK(x.dim() == 2 && x.sizes() == gate.sizes() && x.is_contiguous());
  LONGSHORE_CHECK(norm.segments > 0 && x.size(1) % norm.segments == 0) << norm.segments;
  const bool gate_first = norm.order == kernels::GateOrder::kGateFirst;
  LONGSHORE_CHECK(x.scalar_type() == (gate_first ? at::kFloat : gate.scalar_type()) &&
                  x.device() == gate.device());
  const kernels::GatedNorm shape{.dtype = dtype_of(gate),
                                 .order = norm.order,
                                 .rows = x.size(0),
                                 .segments = norm.segments,
                                 .width = x.size(1) / norm.segments,
                                 .gate_stride = gate.stride(0),
                                 .eps = norm.eps};
  LONGSHORE_CHECK(weight.numel() == shape.weights());
  return shape;
}

}  // namespace

at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                      const GatedNorm& norm) {
  const at::Tensor gates = with_dense_rows(gate);
  at::Tensor y = at::empty(gate.sizes(), gate.options().requires_grad(false));
  const kernels::GatedNorm shape = gated_norm_shape(x, gates, weight, norm);
  const kernels::GatedNormInputs inputs{
      .x = x.const_data_ptr(), .gate = gates.const_data_ptr(), .weight = operand(weight, gates)};
  void* const out = y.mutable_data_ptr();
  if (on_gpu(gate)) {
    kernels::gated_norm_cuda(shape, inputs, out, stream_of(gate));
  } else {
    over_pieces(shape.rows, 1, shape.row_width(), [&](int64_t begin, int64_t end) {
      kernels::gated_norm_cpu(shape, inputs, begin, end, out);
    });
  }
  return y;
}

GatedNormGradients gated_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                       const at::Tensor& gate, const at::Tensor& weight,
                                       const GatedNorm& norm, bool want_weight) {
  const at::Tensor gates = with_dense_rows(gate), upper = grad.contiguous();
  const kernels::GatedNorm shape = gated_norm_shape(x, gates, weight, norm);
  const kernels::GatedNormInputs inputs{
      .x = x.const_data_ptr(), .gate = gates.const_data_ptr(), .weight = operand(weight, gates)};
  const void* const above = operand(upper, gates);
  GatedNormGradients result{.x = at::empty(x.sizes(), x.options().requires_grad(false)),
                            .gate = at::empty(gate.sizes(), gate.options().requires_grad(false)),
                            .weight = {}};
  kernels::GatedNormGradients gradients{.x = result.x.mutable_data_ptr(),
                                        .gate = result.gate.mutable_data_ptr()};
  at::Tensor partial;
  if (want_weight) {
    const auto sums = gate.options().dtype(at::kFloat).requires_grad(false);
    partial = at::empty({kernels::gated_norm_partial_elements(shape)}, sums);
    gradients.partial = partial.mutable_data_ptr<float>();
    result.weight = at::zeros(weight.sizes(), sums);
    gradients.weight = result.weight.mutable_data_ptr<float>();
  }
  if (on_gpu(gate)) {
    kernels::gated_norm_backward_cuda(shape, inputs, above, gradients, stream_of(gate));
    return result;
  }
  over_pieces(kernels::gated_norm_pieces(shape.rows), kernels::gated_norm_piece_rows(shape.rows),
              shape.row_width(), [&](int64_t begin, int64_t end) {
                kernels::gated_norm_backward_cpu(shape, inputs, above, begin, end, gradients);
              });
  if (want_weight) kernels::add_gated_norm_partials_cpu(shape, gradients);
  return result;
}

}  // namespace longshore::fused
