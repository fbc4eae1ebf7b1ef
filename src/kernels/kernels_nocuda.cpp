// The build without CUDA: no tensor is on a GPU, so none of these functions is called.
#include "base/errors.h"
#include "kernels/causal_convolution.h"
#include "kernels/cross_entropy.h"
#include "kernels/gated_norm.h"
#include "kernels/glu.h"
#include "kernels/gradient.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/unpack.h"

namespace longshore::kernels {
namespace {

[[noreturn]] void refuse() {
  LONGSHORE_CHECK(false) << "a GPU kernel in a build without CUDA";
  std::abort();
}

}  // namespace

void norm_cuda(const Norm&, const void*, const void*, const void*, void*, CUstream_st*) {
  refuse();
}
void norm_backward_cuda(const Norm&, const void*, const void*, const void*, void*, float*, float*,
                        float*, CUstream_st*) {
  refuse();
}
void rotary_cuda(const Rotary&, const void*, const int64_t*, const float*, void*, CUstream_st*) {
  refuse();
}
void glu_cuda(const Glu&, const void*, const void*, void*, CUstream_st*) {
  refuse();
}
void glu_backward_cuda(const Glu&, const void*, void*, void*, CUstream_st*) {
  refuse();
}
void unpack_fp8_cuda(DType, int64_t, int64_t, const void*, void*, CUstream_st*) {
  refuse();
}
void unpack_mxfp4_cuda(DType, int64_t, int64_t, const void*, void*, CUstream_st*) {
  refuse();
}
void unpack_nf4_cuda(DType, int64_t, const void*, void*, CUstream_st*) {
  refuse();
}
void unpack_nf4_f32_cuda(DType, int64_t, const void*, void*, CUstream_st*) {
  refuse();
}
void cross_entropy_cuda(const CrossEntropy&, void*, const int64_t*, float*, CUstream_st*) {
  refuse();
}
void cast_and_square_cuda(const float*, int64_t, uint16_t*, double*, double*, CUstream_st*) {
  refuse();
}
void causal_convolution_cuda(const CausalConvolution&, const ConvolutionInputs&, void*,
                             CUstream_st*) {
  refuse();
}
void causal_convolution_backward_cuda(const CausalConvolution&, const ConvolutionInputs&,
                                      const void*, const ConvolutionGradients&, CUstream_st*) {
  refuse();
}
void gated_norm_cuda(const GatedNorm&, const GatedNormInputs&, void*, CUstream_st*) {
  refuse();
}
void gated_norm_backward_cuda(const GatedNorm&, const GatedNormInputs&, const void*,
                              const GatedNormGradients&, CUstream_st*) {
  refuse();
}

}  // namespace longshore::kernels
