// The kernels as their references, with the checks of the kernels' operands. Scratch is
// overwritten, so that a buffer that is too short is found.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "base/errors.h"
#include "kernels/causal_convolution.h"
#include "kernels/cross_entropy.h"
#include "kernels/gated_norm.h"
#include "kernels/gradient.h"
#include "kernels/rms_norm.h"
#include "kernels/rotary.h"
#include "kernels/swiglu.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore::kernels {
namespace {

template <typename T>
void fill(T* scratch, int64_t elements) {
  std::fill_n(scratch, elements, std::numeric_limits<T>::quiet_NaN());
}

void check_aligned(const void* pointer) {
  LONGSHORE_CHECK(reinterpret_cast<uintptr_t>(pointer) % 16 == 0) << "16-byte alignment";
}

}  // namespace

void rms_norm_cuda(const RmsNorm& shape, const void* x, const void* weight, void* y, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  rms_norm_cpu(shape, x, weight, y);
}

void rms_norm_backward_cuda(const RmsNorm& shape, const void* grad, const void* x,
                            const void* weight, void* grad_x, float* weight_sum, float* partial,
                            CUstream_st*) {
  stand_in::run_stream();
  LONGSHORE_CHECK(weight_sum == nullptr || partial != nullptr) << "scratch";
  if (weight_sum != nullptr) fill(partial, rms_norm_partial_elements(shape.rows, shape.width));
  if (stand_in::shapes_only()) return;
  rms_norm_backward_cpu(shape, grad, x, weight, grad_x, weight_sum);
}

void rotary_cuda(const Rotary& shape, const void* x, const int64_t* positions,
                 const float* frequencies, void* out, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  rotary_cpu(shape, x, positions, frequencies, out);
}

void swiglu_cuda(DType dtype, int64_t elements, const void* gate, const void* up, void* y,
                 CUstream_st*) {
  stand_in::run_stream();
  for (const void* operand : {gate, up, static_cast<const void*>(y)}) check_aligned(operand);
  if (stand_in::shapes_only()) return;
  swiglu_cpu(dtype, 0, elements, gate, up, y);
  if (stand_in::is_broken("swiglu")) static_cast<uint16_t*>(y)[1] = 0x42c8;  // 100
}

void swiglu_backward_cuda(DType dtype, int64_t elements, const void* grad, void* gate, void* up,
                          CUstream_st*) {
  stand_in::run_stream();
  for (const void* operand : {grad, static_cast<const void*>(gate), static_cast<const void*>(up)}) {
    check_aligned(operand);
  }
  if (stand_in::shapes_only()) return;
  swiglu_backward_cpu(dtype, 0, elements, grad, gate, up);
}

void cross_entropy_cuda(const CrossEntropy& shape, void* logits, const int64_t* targets,
                        float* losses, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  cross_entropy_cpu(shape, logits, targets, losses);
}

void cast_and_square_cuda(const float* values, int64_t elements, uint16_t* bf16, double* block_sums,
                          double* sum, CUstream_st* stream) {
  if (stream != stand_in::side_stream()) stand_in::run_stream();
  fill(block_sums, square_blocks(elements));
  *sum = cast_and_square_cpu({values, static_cast<size_t>(elements)}, bf16);
}

void causal_convolution_cuda(const CausalConvolution& shape, const ConvolutionInputs& inputs,
                             void* y, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  causal_convolution_cpu(shape, inputs, 0, shape.rows, y);
}

void causal_convolution_backward_cuda(const CausalConvolution& shape,
                                      const ConvolutionInputs& inputs, const void* grad,
                                      const ConvolutionGradients& gradients, CUstream_st*) {
  stand_in::run_stream();
  if (gradients.partial != nullptr) fill(gradients.partial, convolution_partial_elements(shape));
  if (stand_in::shapes_only()) return;
  causal_convolution_backward_cpu(shape, inputs, grad, 0, convolution_pieces(shape.rows),
                                  gradients);
  if (gradients.partial != nullptr) add_convolution_partials_cpu(shape, gradients);
}

void gated_norm_cuda(const GatedNorm& shape, const GatedNormInputs& inputs, void* y, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  gated_norm_cpu(shape, inputs, 0, shape.rows, y);
}

void gated_norm_backward_cuda(const GatedNorm& shape, const GatedNormInputs& inputs,
                              const void* grad, const GatedNormGradients& gradients, CUstream_st*) {
  stand_in::run_stream();
  if (gradients.partial != nullptr) fill(gradients.partial, gated_norm_partial_elements(shape));
  if (stand_in::shapes_only()) return;
  gated_norm_backward_cpu(shape, inputs, grad, 0, gated_norm_pieces(shape.rows), gradients);
  if (gradients.partial != nullptr) add_gated_norm_partials_cpu(shape, gradients);
}

}  // namespace longshore::kernels
