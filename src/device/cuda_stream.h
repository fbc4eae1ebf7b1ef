// CudaStream: a stream of one GPU. `enqueue` runs the work at once, on the calling thread, with
// this stream as LibTorch's and Longshore's current one; the host never waits for the GPU there.
// Owned by whoever owns the device's streams; one thread enqueues. The destructor waits for the
// GPU.
//
// Events of other CUDA streams order the GPU (cudaStreamWaitEvent). Events of host threads do too:
// the GPU waits for a word of mapped memory that the host sets when the event is reached.
//
// What the GPU was given before a host event failed runs all the same, over bytes that nobody will
// use; its events fail with the host's exception. A CUDA error is sticky: every later event fails.
#pragma once

#include <memory>
#include <string>

#include "device/stream.h"

struct CUstream_st;  // cudaStream_t is a pointer to it; no CUDA header is needed here

namespace longshore {

enum class StreamPriority : uint8_t { kNormal, kHigh };

class CudaStream final : public Stream {
 public:
  // ConfigError without CUDA or such a GPU; CudaError when the runtime refuses.
  CudaStream(std::string name, int device, StreamPriority priority = StreamPriority::kNormal);
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override;

  const std::string& name() const override { return name_; }
  Event enqueue(std::span<const Event> after, std::function<void()> work) override;
  void synchronize() override;

  CUstream_st* handle() const;

 private:
  class Impl;
  std::string name_;
  std::unique_ptr<Impl> impl_;
};

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

// The CUDA stream that this thread issues to: that of the work that runs, also on threads that
// LibTorch's autograd runs it on; outside of any, the default stream, null.
CUstream_st* current_cuda_stream(int device);

}  // namespace longshore
