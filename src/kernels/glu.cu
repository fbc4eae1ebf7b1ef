#include <algorithm>

#include "kernels/cuda_values.h"
#include "kernels/glu.h"

namespace longshore::kernels {
namespace {

constexpr int kThreads = 256;

// The activation x * sigmoid(x * (linear + cubic * x^2)) and its slope.
struct Curve {
  float x, share, inner;

  __device__ __forceinline__ Curve(GluActivation activation, float value) : x(value), inner(value) {
    float exponent = x;
    if (activation != GluActivation::kSilu) {
      exponent = x * (kGeluLinear + kGeluCubic * x * x);
      inner = x * (kGeluLinear + 3.0f * kGeluCubic * x * x);
    }
    share = 1.0f / (1.0f + expf(-exponent));
  }
  __device__ __forceinline__ float value() const { return x * share; }
  __device__ __forceinline__ float slope() const { return share * (1.0f + inner * (1.0f - share)); }
};

// The values of a thread at once. Without `up` its values are not read.
template <typename T, int kCount>
__device__ __forceinline__ void products(const Glu& shape, const T* gate, const T* up, T* y) {
  T gates[kCount], ups[kCount];
  load_values<kCount>(gate, gates);
  if (up != nullptr) load_values<kCount>(up, ups);
  for (int i = 0; i < kCount; ++i) {
    const Curve curve(shape.activation, to_float(gates[i]));
    gates[i] = up == nullptr ? rounded_to<T>(curve.value())
                             : rounded_to<T>(rounded<T>(curve.value()) * to_float(ups[i]));
  }
  store_values<kCount>(y, gates);
}

template <typename T, int kCount>
__device__ __forceinline__ void gradients(const Glu& shape, const T* grad, T* gate, T* up) {
  T uppers[kCount], gates[kCount], ups[kCount];
  load_values<kCount>(grad, uppers);
  load_values<kCount>(gate, gates);
  if (up != nullptr) load_values<kCount>(up, ups);
  for (int i = 0; i < kCount; ++i) {
    const Curve curve(shape.activation, to_float(gates[i]));
    const float upper = to_float(uppers[i]);
    float through = upper;
    if (up != nullptr) {
      through = rounded<T>(upper * to_float(ups[i]));
      ups[i] = rounded_to<T>(upper * rounded<T>(curve.value()));
    }
    gates[i] = rounded_to<T>(through * curve.slope());
  }
  if (up != nullptr) store_values<kCount>(up, ups);
  store_values<kCount>(gate, gates);
}

// Blocks in y take rows, with strides; threads in x take kCount values of a row at a time and
// single values at its end.
template <typename T, int kCount>
__global__ void forward(Glu shape, const T* gates, const T* ups, T* ys) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t lots = shape.width / kCount;
  for (int64_t row = blockIdx.y; row < shape.rows; row += gridDim.y) {
    const T* gate = gates + row * shape.gate_stride;
    const T* up = ups == nullptr ? nullptr : ups + row * shape.up_stride;
    T* y = ys + row * shape.width;
    for (int64_t i = thread * kCount; i < lots * kCount; i += threads * kCount) {
      products<T, kCount>(shape, gate + i, up == nullptr ? up : up + i, y + i);
    }
    for (int64_t i = lots * kCount + thread; i < shape.width; i += threads) {
      products<T, 1>(shape, gate + i, up == nullptr ? up : up + i, y + i);
    }
  }
}

template <typename T, int kCount>
__global__ void backward(Glu shape, const T* grads, T* gates, T* ups) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t lots = shape.width / kCount;
  for (int64_t row = blockIdx.y; row < shape.rows; row += gridDim.y) {
    const T* grad = grads + row * shape.width;
    T* gate = gates + row * shape.gate_stride;
    T* up = ups == nullptr ? nullptr : ups + row * shape.up_stride;
    for (int64_t i = thread * kCount; i < lots * kCount; i += threads * kCount) {
      gradients<T, kCount>(shape, grad + i, gate + i, up == nullptr ? up : up + i);
    }
    for (int64_t i = lots * kCount + thread; i < shape.width; i += threads) {
      gradients<T, 1>(shape, grad + i, gate + i, up == nullptr ? up : up + i);
    }
  }
}

// Returns whether every row begins at 16 bytes.
bool takes_lots(const Glu& shape, const void* gate, const void* up, const void* y) {
  const auto whole = [&](int64_t stride) { return stride * width_of(shape.dtype) % 16 == 0; };
  const bool strides =
      shape.rows <= 1 || (whole(shape.gate_stride) && whole(shape.up_stride) && whole(shape.width));
  return strides && aligned(gate) && aligned(up) && aligned(y);
}

dim3 grid(const Glu& shape, int count) {
  constexpr int64_t kMostRows = 65535;
  const int64_t each = static_cast<int64_t>(kThreads) * count;
  return {blocks_for((shape.width + each - 1) / each),
          static_cast<unsigned>(std::min(shape.rows, kMostRows))};
}

}  // namespace

void glu_cuda(const Glu& shape, const void* gate, const void* up, void* y, CUstream_st* stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  with_cuda_width(shape.dtype, takes_lots(shape, gate, up, y), [&](auto type, auto count) {
    using T = decltype(type);
    launch(forward<T, decltype(count)::value>, grid(shape, count), kThreads, stream, shape,
           static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(y));
  });
  check_launch("glu");
}

void glu_backward_cuda(const Glu& shape, const void* grad, void* gate, void* up,
                       CUstream_st* stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  with_cuda_width(shape.dtype, takes_lots(shape, gate, up, grad), [&](auto type, auto count) {
    using T = decltype(type);
    launch(backward<T, decltype(count)::value>, grid(shape, count), kThreads, stream, shape,
           static_cast<const T*>(grad), static_cast<T*>(gate), static_cast<T*>(up));
  });
  check_launch("glu_backward");
}

}  // namespace longshore::kernels
