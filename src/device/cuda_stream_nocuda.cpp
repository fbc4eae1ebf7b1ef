// The build without CUDA.
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"

namespace longshore {

class CudaStream::Impl {};

CudaStream::CudaStream(std::string name, int device, StreamPriority) : name_(std::move(name)) {
  require_gpu(device);
}
CudaStream::~CudaStream() = default;
Event CudaStream::enqueue(std::span<const Event>, std::function<void()>) {
  return {};
}
void CudaStream::synchronize() {}
CUstream_st* CudaStream::handle() const {
  return nullptr;
}
void adopt_cuda_stream(int device, StreamPriority) {
  require_gpu(device);
}

void finish_cuda_work(int, const std::string&) {}

CUstream_st* current_cuda_stream(int) {
  return nullptr;
}

}  // namespace longshore
