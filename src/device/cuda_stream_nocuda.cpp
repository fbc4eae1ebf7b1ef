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
struct CudaSideStream::State {};

CudaSideStream::CudaSideStream(int device, int32_t) {
  require_gpu(device);
}
CudaSideStream::~CudaSideStream() = default;
CUstream_st* CudaSideStream::handle() const {
  return nullptr;
}
void CudaSideStream::mark(int32_t) {}
void CudaSideStream::wait_for(int32_t) {}
void CudaSideStream::join() {}

void adopt_cuda_stream(int device, StreamPriority) {
  require_gpu(device);
}

void finish_cuda_work(int, const std::string&) {}

CUstream_st* current_cuda_stream(int) {
  return nullptr;
}

}  // namespace longshore
