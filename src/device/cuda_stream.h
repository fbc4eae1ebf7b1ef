// cuda_stream: CUDA streams of threads. Each lane of the engine is a thread with its own stream and
// may have a second one, a side stream. This header is the same with and without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct CUstream_st;  // cudaStream_t is a pointer to it; no CUDA header is needed

namespace longshore {

enum class StreamPriority : uint8_t { kNormal, kHigh };

// A second, high-priority stream of the calling thread, for work that runs while the thread's own
// stream is busy. Events order the two streams; the host does not wait. One thread owns and uses
// it; the destructor waits for the GPU.
class CudaSideStream {
 public:
  // `marks` is the number of points of the thread's stream that it can remember.
  CudaSideStream(int device, int32_t marks);
  CudaSideStream(const CudaSideStream&) = delete;
  CudaSideStream& operator=(const CudaSideStream&) = delete;
  ~CudaSideStream();

  CUstream_st* handle() const;
  // Marks the current end of the thread's stream.
  void mark(int32_t index);
  // Later work of this stream runs after the mark; it does not wait if the mark was never set.
  void wait_for(int32_t index);
  // Later work of the thread's stream runs after all work queued on this one.
  void join();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A point of the calling thread's stream that the host can wait for while later work goes on. One
// thread at a time records and waits.
class CudaMark {
 public:
  explicit CudaMark(int device);
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;
  ~CudaMark();

  // Marks the current end of the thread's stream, instead of an earlier point.
  void record();
  // HOST WAIT: until the marked work is done; returns at once if nothing was marked. The thread is
  // the one that recorded. Throws CudaError if the work failed.
  void wait() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Gives the calling thread (a lane) its own CUDA stream, which stays its current stream until the
// thread ends. A lane issues to it and waits for it at the end of every operation.
void adopt_cuda_stream(int device, StreamPriority priority);
// HOST WAIT: blocks until this thread's stream is done. Throws CudaError, naming `what`, if work on
// it failed.
void finish_cuda_work(int device, const std::string& what);

// Returns the CUDA stream that this thread issues to: the adopted one; on a thread of LibTorch's
// autograd, the stream of the thread whose backward it runs; else null, the default stream.
CUstream_st* current_cuda_stream(int device);

}  // namespace longshore
