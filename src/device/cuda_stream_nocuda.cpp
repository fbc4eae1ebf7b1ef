// CUDA streams in the build without CUDA: there are none.
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"

namespace longshore {

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
