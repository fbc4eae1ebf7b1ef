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
#include "kernels/glu.h"
#include "kernels/gradient.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore::kernels {
namespace {

template <typename T>
void fill(T* scratch, int64_t elements) {
  std::fill_n(scratch, elements, std::numeric_limits<T>::quiet_NaN());
}

}  // namespace

void norm_cuda(const Norm& shape, const void* x, const void* weight, const void* bias, void* y,
               CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  norm_cpu(shape, 0, shape.rows, x, weight, bias, y);
}

void norm_backward_cuda(const Norm& shape, const void* grad, const void* x, const void* weight,
                        void* grad_x, float* weight_sum, float* bias_sum, float* partial,
                        CUstream_st*) {
  stand_in::run_stream();
  const int64_t sums = (weight_sum == nullptr ? 0 : 1) + (bias_sum == nullptr ? 0 : 1);
  LONGSHORE_CHECK(sums == 0 || partial != nullptr) << "scratch";
  if (sums > 0) fill(partial, sums * norm_partial_elements(shape.rows, shape.width));
  if (stand_in::shapes_only()) return;
  norm_backward_cpu(shape, 0, shape.rows, grad, x, weight, grad_x, weight_sum, bias_sum);
}

void rotary_cuda(const Rotary& shape, const void* x, const int64_t* positions,
                 const float* frequencies, void* out, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  rotary_cpu(shape, 0, shape.rows, x, positions, frequencies, out);
}

void glu_cuda(const Glu& shape, const void* gate, const void* up, void* y, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  glu_cpu(shape, 0, shape.rows, gate, up, y);
  if (stand_in::is_broken("glu")) static_cast<uint16_t*>(y)[1] = 0x42c8;  // 100
}

void glu_backward_cuda(const Glu& shape, const void* grad, void* gate, void* up, CUstream_st*) {
  stand_in::run_stream();
  if (stand_in::shapes_only()) return;
  glu_backward_cpu(shape, 0, shape.rows, grad, gate, up);
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
