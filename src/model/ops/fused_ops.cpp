#include "model/ops/fused_ops.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/mxfp4.h"
#include "device/compute_threads.h"
#include "device/cuda_stream.h"
#include "device/gpu_tensors.h"
#include "kernels/causal_convolution.h"
#include "kernels/cross_entropy.h"
#include "kernels/gated_norm.h"
#include "kernels/glu.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/unpack.h"

namespace longshore::fused {

DType dtype_of(const at::Tensor& x) {
  LONGSHORE_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16)
      << "kernels compute in fp32 and bf16";
  return x.scalar_type() == at::kFloat ? DType::kF32 : DType::kBF16;
}

namespace {

// The fewest elements for which the CPU wakes another thread.
constexpr int64_t kGrain = int64_t{1} << 14;
constexpr int64_t kUnpackGrain = int64_t{1} << 16;

CUstream_st* stream_of(const at::Tensor& x) {
  return current_cuda_stream(x.get_device());
}

// Checks that x has the dtype and device of `like` and is contiguous, as the kernels require.
const void* operand(const at::Tensor& x, const at::Tensor& like) {
  LONGSHORE_CHECK(x.is_contiguous() && x.scalar_type() == like.scalar_type() &&
                  x.device() == like.device());
  return x.const_data_ptr();
}

// Returns the bytes of an operand, or null if it is undefined.
const void* optional_operand(const at::Tensor& x, const at::Tensor& like) {
  return x.defined() ? operand(x, like) : nullptr;
}

float* sum_of(const at::Tensor& sum, int64_t width) {
  if (!sum.defined()) return nullptr;
  LONGSHORE_CHECK(sum.numel() == width && sum.is_contiguous());
  return sum.mutable_data_ptr<float>();
}

kernels::Norm norm_shape(const at::Tensor& x, const at::Tensor& weight, NormKind kind, double eps) {
  const int64_t width = weight.numel();
  LONGSHORE_CHECK(width > 0 && x.numel() % width == 0) << x.numel() << " by " << width;
  return {.dtype = dtype_of(x),
          .rows = x.numel() / width,
          .width = width,
          .eps = eps,
          .rounds = kind == NormKind::kRms,
          .centred = kind == NormKind::kLayer,
          .offset = kind == NormKind::kRmsOffset ? 1.0f : 0.0f};
}

// The least rows for which the CPU wakes another thread.
int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
}

// Returns x (undefined or [rows, width]), or a copy if the values of a row do not lie together.
at::Tensor with_rows(const at::Tensor& x) {
  return !x.defined() || x.stride(1) == 1 || x.size(1) == 1 ? x : x.contiguous();
}

struct NormOperands {
  const void* grad;
  const void* x;
  const void* weight;
  void* grad_x;
};

// Sums over rows are added in pieces of rows that depend on the shape alone. Each sum has a row of
// scratch for each piece, or as much as a GPU would have.
void norm_sums_on_cpu(const kernels::Norm& shape, const NormOperands& in, float* weight_sum,
                      float* bias_sum, const at::TensorOptions& options) {
  constexpr int64_t kMostPieces = 64, kLeastRows = 16;
  const int64_t rows_each = std::max(kLeastRows, (shape.rows + kMostPieces - 1) / kMostPieces);
  const int64_t pieces = (shape.rows + rows_each - 1) / rows_each;
  const int64_t sums = (weight_sum == nullptr ? 0 : 1) + (bias_sum == nullptr ? 0 : 1);
  const int64_t lines = measures_absent_gpu()
                            ? std::max(pieces, kernels::norm_partials(shape.rows, shape.width))
                            : pieces;
  const at::Tensor scratch = at::empty({sums * lines * shape.width}, options);
  float* next = scratch.mutable_data_ptr<float>();
  float* const of_weight =
      weight_sum == nullptr ? nullptr : std::exchange(next, next + pieces * shape.width);
  float* const of_bias = bias_sum == nullptr ? nullptr : next;
  const auto cleared = [&](float* partial, int64_t piece) {
    if (partial != nullptr) std::fill_n(partial += piece * shape.width, shape.width, 0.0f);
    return partial;
  };
  parallel_for(0, pieces, row_grain(rows_each * shape.width), [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      kernels::norm_backward_cpu(
          shape, piece * rows_each, std::min(shape.rows, (piece + 1) * rows_each), in.grad, in.x,
          in.weight, in.grad_x, cleared(of_weight, piece), cleared(of_bias, piece));
    }
  });
  if (weight_sum != nullptr) kernels::add_rows_cpu(of_weight, pieces, shape.width, weight_sum);
  if (bias_sum != nullptr) kernels::add_rows_cpu(of_bias, pieces, shape.width, bias_sum);
}

}  // namespace

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                NormKind kind, double eps) {
  at::Tensor y = at::empty(x.sizes(), x.options().requires_grad(false));
  const kernels::Norm shape = norm_shape(x, weight, kind, eps);
  const void* const in = operand(x, x);
  const void* const scale = operand(weight, x);
  const void* const level = optional_operand(bias, x);
  void* const out = y.mutable_data_ptr();
  if (on_gpu(x)) {
    kernels::norm_cuda(shape, in, scale, level, out, stream_of(x));
  } else {
    parallel_for(0, shape.rows, row_grain(shape.width), [&](int64_t begin, int64_t end) {
      kernels::norm_cpu(shape, begin, end, in, scale, level, out);
    });
  }
  return y;
}

at::Tensor norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                         NormKind kind, double eps, const at::Tensor& weight_sum,
                         const at::Tensor& bias_sum) {
  at::Tensor grad_x = at::empty(x.sizes(), x.options().requires_grad(false));
  const kernels::Norm shape = norm_shape(x, weight, kind, eps);
  const at::Tensor upper = grad.contiguous();
  const NormOperands in{operand(upper, x), operand(x, x), operand(weight, x),
                        grad_x.mutable_data_ptr()};
  float* const of_weight = sum_of(weight_sum, shape.width);
  float* const of_bias = sum_of(bias_sum, shape.width);
  const int64_t sums = (of_weight == nullptr ? 0 : 1) + (of_bias == nullptr ? 0 : 1);
  const auto wide = x.options().dtype(at::kFloat).requires_grad(false);
  if (on_gpu(x)) {
    const at::Tensor partial =
        at::empty({sums * kernels::norm_partial_elements(shape.rows, shape.width)}, wide);
    kernels::norm_backward_cuda(shape, in.grad, in.x, in.weight, in.grad_x, of_weight, of_bias,
                                partial.mutable_data_ptr<float>(), stream_of(x));
  } else if (sums > 0) {
    norm_sums_on_cpu(shape, in, of_weight, of_bias, wide);
  } else {
    parallel_for(0, shape.rows, row_grain(shape.width), [&](int64_t begin, int64_t end) {
      kernels::norm_backward_cpu(shape, begin, end, in.grad, in.x, in.weight, in.grad_x, nullptr,
                                 nullptr);
    });
  }
  return grad_x;
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const Rotation& rotation,
                  int64_t head_dim, int direction) {
  const at::Tensor& frequencies = rotation.frequencies;
  const int64_t turning = frequencies.size(-1);
  const bool shared = frequencies.dim() == 1;
  LONGSHORE_CHECK(x.dim() == 2 && x.stride(1) == 1 && x.size(1) % head_dim == 0);
  LONGSHORE_CHECK(positions.numel() == x.size(0) && positions.is_contiguous());
  LONGSHORE_CHECK(frequencies.is_contiguous() && (shared || frequencies.size(0) == x.size(0)));
  at::Tensor out = at::empty({x.size(0), x.size(1)}, x.options().requires_grad(false));
  const kernels::Rotary shape{.dtype = dtype_of(x),
                              .rows = x.size(0),
                              .heads = x.size(1) / head_dim,
                              .head_dim = head_dim,
                              .turned = 2 * turning,
                              .row_stride = x.stride(0),
                              .frequency_stride = shared ? 0 : turning,
                              .scale = static_cast<float>(rotation.scale),
                              .pairs = rotation.pairs,
                              .direction = direction};
  const void* const in = x.const_data_ptr();
  const auto* const places = positions.const_data_ptr<int64_t>();
  const auto* const angles = frequencies.const_data_ptr<float>();
  void* const result = out.mutable_data_ptr();
  if (on_gpu(x)) {
    kernels::rotary_cuda(shape, in, places, angles, result, stream_of(x));
  } else {
    parallel_for(0, shape.rows, row_grain(x.size(1)), [&](int64_t begin, int64_t end) {
      kernels::rotary_cpu(shape, begin, end, in, places, angles, result);
    });
  }
  return out;
}

namespace {

kernels::Glu glu_shape(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  LONGSHORE_CHECK(glu_has(activation) && gate.dim() == 2 && gate.stride(1) == 1);
  LONGSHORE_CHECK(!up.defined() || (up.sizes() == gate.sizes() && up.stride(1) == 1 &&
                                    up.scalar_type() == gate.scalar_type()));
  kernels::Glu shape{.dtype = dtype_of(gate),
                     .activation = activation == Activation::kSilu
                                       ? kernels::GluActivation::kSilu
                                       : kernels::GluActivation::kGeluTanh,
                     .rows = gate.size(0),
                     .width = gate.size(1),
                     .gate_stride = gate.stride(0),
                     .up_stride = up.defined() ? up.stride(0) : 0};
  // One long row keeps all threads of a GPU busy.
  if (on_gpu(gate) && gate.is_contiguous() && (!up.defined() || up.is_contiguous())) {
    shape.width = std::exchange(shape.rows, 1) * shape.width;
  }
  return shape;
}

}  // namespace

at::Tensor glu(const at::Tensor& all_gate, const at::Tensor& all_up, Activation activation) {
  const at::Tensor gate = with_rows(all_gate), up = with_rows(all_up);
  at::Tensor y = at::empty({gate.size(0), gate.size(1)}, gate.options().requires_grad(false));
  const kernels::Glu shape = glu_shape(gate, up, activation);
  const void* const g = gate.const_data_ptr();
  const void* const u = up.defined() ? up.const_data_ptr() : nullptr;
  void* const out = y.mutable_data_ptr();
  if (on_gpu(gate)) {
    kernels::glu_cuda(shape, g, u, out, stream_of(gate));
  } else {
    parallel_for(0, shape.rows, row_grain(shape.width), [&](int64_t begin, int64_t end) {
      kernels::glu_cpu(shape, begin, end, g, u, out);
    });
  }
  return y;
}

void glu_backward(const at::Tensor& grad, const at::Tensor& all_gate, const at::Tensor& all_up,
                  Activation activation) {
  const at::Tensor gate = with_rows(all_gate), up = with_rows(all_up);
  const kernels::Glu shape = glu_shape(gate, up, activation);
  const at::Tensor upper = grad.contiguous();
  const void* const above = operand(upper, gate);
  void* const g = gate.mutable_data_ptr();
  void* const u = up.defined() ? up.mutable_data_ptr() : nullptr;
  if (on_gpu(gate)) {
    kernels::glu_backward_cuda(shape, above, g, u, stream_of(gate));
  } else {
    parallel_for(0, shape.rows, row_grain(shape.width), [&](int64_t begin, int64_t end) {
      kernels::glu_backward_cpu(shape, begin, end, above, g, u);
    });
  }
  if (!gate.is_same(all_gate)) all_gate.copy_(gate);
  if (up.defined() && !up.is_same(all_up)) all_up.copy_(up);
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
      return;
    case PackedFormat::kNf4F32:
      kernels::unpack_nf4_f32_cuda(dtype, values.numel(), packed, out, stream_of(values));
  }
}

void unpack_on_cpu(PackedFormat format, const void* packed, const at::Tensor& values) {
  const DType dtype = dtype_of(values);
  const int64_t rows = values.size(0), columns = values.size(1);
  void* const out = values.mutable_data_ptr();
  if (format == PackedFormat::kMxfp4) {
    constexpr int64_t kGroup = Mxfp4Layout::kGroup;
    const int64_t grain = std::max<int64_t>(1, kUnpackGrain / (kGroup * columns));
    parallel_for(0, rows / kGroup, grain, [&](int64_t begin, int64_t end) {
      kernels::unpack_mxfp4_cpu(dtype, rows, columns, packed, begin, end, out);
    });
    return;
  }
  parallel_for(0, values.numel(), kUnpackGrain, [&](int64_t begin, int64_t end) {
    if (format == PackedFormat::kNf4) {
      kernels::unpack_nf4_cpu(dtype, values.numel(), packed, begin, end, out);
    } else if (format == PackedFormat::kNf4F32) {
      kernels::unpack_nf4_f32_cpu(dtype, values.numel(), packed, begin, end, out);
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
  LONGSHORE_CHECK(values.is_contiguous() && packed.is_contiguous() &&
                  packed.scalar_type() == at::kByte && packed.device() == values.device() &&
                  packed.numel() >= packed_bytes(format, values.sizes()));
  const void* const bytes = packed.const_data_ptr();
  if (on_gpu(values)) {
    unpack_on_gpu(format, bytes, values);
  } else {
    unpack_on_cpu(format, bytes, values);
  }
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double scale,
                         bool gradient, const at::Tensor& row_scales,
                         const at::Tensor& statistics) {
  LONGSHORE_CHECK(logits.dim() == 2 && logits.is_contiguous());
  LONGSHORE_CHECK(targets.is_contiguous() && targets.numel() == logits.size(0));
  const bool scaled = row_scales.defined();
  LONGSHORE_CHECK(!scaled || (row_scales.is_contiguous() && row_scales.numel() == logits.size(0) &&
                              row_scales.device() == logits.device()));
  const bool counted = statistics.defined();
  LONGSHORE_CHECK(!counted ||
                  (statistics.is_contiguous() && statistics.numel() == 2 * logits.size(0) &&
                   statistics.device() == logits.device()));
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const kernels::CrossEntropy shape{
      .dtype = dtype_of(logits),
      .rows = logits.size(0),
      .vocabulary = logits.size(1),
      .scale = scale,
      .gradient = gradient,
      .row_scales = scaled ? row_scales.const_data_ptr<float>() : nullptr,
      .statistics = counted ? statistics.mutable_data_ptr<float>() : nullptr};
  const auto* const wanted = targets.const_data_ptr<int64_t>();
  auto* const out = losses.mutable_data_ptr<float>();
  if (on_gpu(logits)) {
    kernels::cross_entropy_cuda(shape, logits.mutable_data_ptr(), wanted, out, stream_of(logits));
  } else {
    auto* const values = static_cast<char*>(logits.mutable_data_ptr());
    parallel_for(0, shape.rows, 1, [&](int64_t begin, int64_t end) {
      kernels::CrossEntropy part = shape;
      part.rows = end - begin;
      if (scaled) part.row_scales += begin;
      if (counted) part.statistics += 2 * begin;
      kernels::cross_entropy_cpu(
          part, values + begin * shape.vocabulary * static_cast<int64_t>(logits.element_size()),
          wanted + begin, out + begin);
    });
  }
  return losses;
}

namespace {

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
          .bias = optional_operand(bias, x),
          .positions = positions.const_data_ptr<int64_t>()};
}

}  // namespace

at::Tensor causal_convolution(const at::Tensor& x, const Convolution& convolution) {
  const at::Tensor in = with_rows(x);
  at::Tensor y = at::empty(x.sizes(), x.options().requires_grad(false));
  const kernels::CausalConvolution shape = convolution_shape(in, convolution);
  const kernels::ConvolutionInputs inputs = convolution_inputs(in, convolution);
  void* const out = y.mutable_data_ptr();
  if (on_gpu(x)) {
    kernels::causal_convolution_cuda(shape, inputs, out, stream_of(x));
  } else {
    parallel_for(0, shape.rows, row_grain(shape.channels), [&](int64_t begin, int64_t end) {
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
  const at::Tensor in = with_rows(x), upper = grad.contiguous();
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
  parallel_for(0, kernels::convolution_pieces(shape.rows),
               row_grain(kernels::convolution_piece_rows(shape.rows) * shape.channels),
               [&](int64_t begin, int64_t end) {
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
  const at::Tensor gates = with_rows(gate);
  at::Tensor y = at::empty(gate.sizes(), gate.options().requires_grad(false));
  const kernels::GatedNorm shape = gated_norm_shape(x, gates, weight, norm);
  const kernels::GatedNormInputs inputs{
      .x = x.const_data_ptr(), .gate = gates.const_data_ptr(), .weight = operand(weight, gates)};
  void* const out = y.mutable_data_ptr();
  if (on_gpu(gate)) {
    kernels::gated_norm_cuda(shape, inputs, out, stream_of(gate));
  } else {
    parallel_for(0, shape.rows, row_grain(shape.row_width()), [&](int64_t begin, int64_t end) {
      kernels::gated_norm_cpu(shape, inputs, begin, end, out);
    });
  }
  return y;
}

GatedNormGradients gated_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                       const at::Tensor& gate, const at::Tensor& weight,
                                       const GatedNorm& norm, bool want_weight) {
  const at::Tensor gates = with_rows(gate), upper = grad.contiguous();
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
  parallel_for(0, kernels::gated_norm_pieces(shape.rows),
               row_grain(kernels::gated_norm_piece_rows(shape.rows) * shape.row_width()),
               [&](int64_t begin, int64_t end) {
                 kernels::gated_norm_backward_cpu(shape, inputs, above, begin, end, gradients);
               });
  if (want_weight) kernels::add_gated_norm_partials_cpu(shape, gradients);
  return result;
}

}  // namespace longshore::fused
