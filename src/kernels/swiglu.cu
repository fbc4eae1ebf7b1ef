#include "kernels/cuda_values.h"
#include "kernels/swiglu.h"

namespace longshore::kernels {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float sigmoid(float value) {
  return 1.0f / (1.0f + expf(-value));
}

template <typename T>
__device__ __forceinline__ T product(T gate, T up) {
  const float g = to_float(gate);
  return rounded_to<T>(rounded<T>(g * sigmoid(g)) * to_float(up));
}

template <typename T>
__device__ __forceinline__ void gradients(T grad, T& gate, T& up) {
  const float g = to_float(gate);
  const float upper = to_float(grad);
  const float s = sigmoid(g);
  const float through = rounded<T>(upper * to_float(up));
  up = rounded_to<T>(upper * rounded<T>(g * s));
  gate = rounded_to<T>(through * s * (1.0f + g * (1.0f - s)));
}

// Each thread takes lots of 16 bytes; the last elements are handled one by one.
template <typename T>
__global__ void forward(int64_t elements, const T* gate, const T* up, T* y) {
  constexpr int kLot = Lot<T>::kCount;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t lot = thread; lot < elements / kLot; lot += threads) {
    const Lot<T> g = reinterpret_cast<const Lot<T>*>(gate)[lot];
    const Lot<T> u = reinterpret_cast<const Lot<T>*>(up)[lot];
    Lot<T> out;
    for (int i = 0; i < kLot; ++i) out.values[i] = product(g.values[i], u.values[i]);
    reinterpret_cast<Lot<T>*>(y)[lot] = out;
  }
  for (int64_t i = elements / kLot * kLot + thread; i < elements; i += threads) {
    y[i] = product(gate[i], up[i]);
  }
}

template <typename T>
__global__ void backward(int64_t elements, const T* grad, T* gate, T* up) {
  constexpr int kLot = Lot<T>::kCount;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t lot = thread; lot < elements / kLot; lot += threads) {
    const Lot<T> upper = reinterpret_cast<const Lot<T>*>(grad)[lot];
    Lot<T> g = reinterpret_cast<Lot<T>*>(gate)[lot];
    Lot<T> u = reinterpret_cast<Lot<T>*>(up)[lot];
    for (int i = 0; i < kLot; ++i) gradients(upper.values[i], g.values[i], u.values[i]);
    reinterpret_cast<Lot<T>*>(gate)[lot] = g;
    reinterpret_cast<Lot<T>*>(up)[lot] = u;
  }
  for (int64_t i = elements / kLot * kLot + thread; i < elements; i += threads) {
    gradients(grad[i], gate[i], up[i]);
  }
}

// Lots need 16-byte alignment: LibTorch's own tensors have it, views into them may not.
void check_aligned(const void* a, const void* b, const void* c) {
  LONGSHORE_CHECK(aligned(a) && aligned(b) && aligned(c)) << "swiglu needs 16-byte alignment";
}

unsigned grid(DType dtype, int64_t elements) {
  const int64_t each = kThreads * (16 / width_of(dtype));
  return blocks_for((elements + each - 1) / each);
}

}  // namespace

void swiglu_cuda(DType dtype, int64_t elements, const void* gate, const void* up, void* y,
                 CUstream_st* stream) {
  if (elements == 0) return;
  check_aligned(gate, up, y);
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch(forward<T>, grid(dtype, elements), kThreads, stream, elements,
           static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(y));
  });
  check_launch("swiglu");
}

void swiglu_backward_cuda(DType dtype, int64_t elements, const void* grad, void* gate, void* up,
                          CUstream_st* stream) {
  if (elements == 0) return;
  check_aligned(grad, gate, up);
  with_cuda_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch(backward<T>, grid(dtype, elements), kThreads, stream, elements,
           static_cast<const T*>(grad), static_cast<T*>(gate), static_cast<T*>(up));
  });
  check_launch("swiglu_backward");
}

}  // namespace longshore::kernels
