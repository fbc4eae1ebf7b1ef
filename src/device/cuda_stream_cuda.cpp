// CUDA streams in the build with CUDA.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "device/cuda_check.h"
#include "device/cuda_stream.h"
#include "device/free_list.h"

namespace longshore {
namespace {

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;

CudaEvent make_event() {
  cudaEvent_t event = nullptr;
  // With a blocking event a waiting thread sleeps and leaves its core to the update's threads.
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
             "make an event");
  return CudaEvent(event);
}

// Streams of lanes are reused: cuBLAS keeps 32 MiB for each stream it has seen, and LibTorch's
// allocator keeps freed memory by stream.
using LaneStreams = FreeList<c10::cuda::CUDAStream>;
LaneStreams& lane_streams(int device, bool high) {
  static auto* const mutex = new Mutex;
  static auto* const lists = new std::map<std::pair<int, bool>, LaneStreams>;
  const MutexLock lock(*mutex);
  return (*lists)[{device, high}];
}

}  // namespace

struct CudaSideStream::State {
  int device = 0;
  cudaStream_t stream = nullptr;
  CudaEvent joined = make_event();
  std::vector<CudaEvent> marks;
};

CudaSideStream::CudaSideStream(int device, int32_t marks) {
  require_gpu(device);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  state_ = std::make_unique<State>();
  state_->device = device;
  // An event that was never recorded blocks no stream.
  for (int32_t i = 0; i < marks; ++i) state_->marks.push_back(make_event());
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for streams' priorities");
  check_cuda(cudaStreamCreateWithPriority(&state_->stream, cudaStreamNonBlocking, greatest),
             "make a stream");
}

CudaSideStream::~CudaSideStream() {
  cudaStreamSynchronize(state_->stream);
  cudaStreamDestroy(state_->stream);
}

CUstream_st* CudaSideStream::handle() const {
  return state_->stream;
}

void CudaSideStream::mark(int32_t index) {
  check_cuda(cudaEventRecord(state_->marks.at(static_cast<size_t>(index)).get(),
                             current_cuda_stream(state_->device)),
             "record an event of a stream");
}

void CudaSideStream::wait_for(int32_t index) {
  check_cuda(
      cudaStreamWaitEvent(state_->stream, state_->marks.at(static_cast<size_t>(index)).get(), 0),
      "make a stream wait for an event");
}

void CudaSideStream::join() {
  check_cuda(cudaEventRecord(state_->joined.get(), state_->stream), "record the end of a stream");
  check_cuda(cudaStreamWaitEvent(current_cuda_stream(state_->device), state_->joined.get(), 0),
             "make a stream wait for another");
}

struct CudaMark::State {
  int device = 0;
  CudaEvent event = make_event();
};

CudaMark::CudaMark(int device) {
  require_gpu(device);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  state_ = std::make_unique<State>();
  state_->device = device;
}

CudaMark::~CudaMark() = default;

void CudaMark::record() {
  check_cuda(cudaEventRecord(state_->event.get(), current_cuda_stream(state_->device)),
             "record an event of a stream");
}

void CudaMark::wait() const {
  check_cuda(cudaEventSynchronize(state_->event.get()), "wait for an event of a stream");
}

void adopt_cuda_stream(int device, StreamPriority priority) {
  require_gpu(device);
  const auto index = static_cast<c10::DeviceIndex>(device);
  const bool high = priority == StreamPriority::kHigh;
  c10::cuda::set_device(index);
  // The lease ends with the thread, whose work is then done: another thread may take the stream.
  static thread_local std::optional<LaneStreams::Lease> adopted;
  adopted.emplace(
      lane_streams(device, high).take([&] { return c10::cuda::getStreamFromPool(high, index); }));
  c10::cuda::setCurrentCUDAStream(adopted->value());
}

void finish_cuda_work(int device, const std::string& what) {
  check_cuda(cudaStreamSynchronize(current_cuda_stream(device)), "run " + what);
}

CUstream_st* current_cuda_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

}  // namespace longshore
