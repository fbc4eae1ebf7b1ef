// CUDA streams of threads: each lane of the engine is a thread with one of its own, and may have a
// side stream that runs beside it. The same header with and without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct CUstream_st;  // cudaStream_t is a pointer to it; no CUDA header is needed here

namespace longshore {

enum class StreamPriority : uint8_t { kNormal, kHigh };

// A stream beside the calling thread's, for work that runs while the thread's own is busy; ordered
// with it by what one waits for in the other, never by the host. Of urgent work. Owned and used by
// one thread; the destructor waits for the GPU.
class CudaSideStream {
 public:
  // `marks`: how many places of the thread's stream it remembers.
  CudaSideStream(int device, int32_t marks);
  CudaSideStream(const CudaSideStream&) = delete;
  CudaSideStream& operator=(const CudaSideStream&) = delete;
  ~CudaSideStream();

  CUstream_st* handle() const;
  // Remembers what the thread's stream was given so far.
  void mark(int32_t index);
  // What this stream is given next comes behind the mark; at once where there was none.
  void wait_for(int32_t index);
  // What the thread's stream is given next comes behind all that this one was given.
  void join();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Gives the calling thread a CUDA stream of its own, its current one until the thread ends. For
// lanes that are threads: each issues to its own stream and waits for it at the end of every work.
void adopt_cuda_stream(int device, StreamPriority priority);
// HOST WAIT: all that this thread's stream was given is done. CudaError, naming `what`, when it
// failed.
void finish_cuda_work(int device, const std::string& what);

// The CUDA stream that this thread issues to: the one it adopted; on a thread of LibTorch's
// autograd that of the thread whose backward it runs; the default stream, null, on any other
// thread.
CUstream_st* current_cuda_stream(int device);

}  // namespace longshore
