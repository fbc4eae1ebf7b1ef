// The build with CUDA. A host event becomes a word of mapped memory: the host writes the word's
// next generation when the event is reached, the GPU waits until the word has it
// (cuStreamWaitValue32). So neither side's thread waits for the other.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "device/cuda_check.h"
#include "device/cuda_stream.h"
#include "device/failure_clock.h"
#include "device/free_list.h"

namespace longshore {
namespace {

// Host events that one stream may wait for at a time; a step has a few for each unit.
constexpr size_t kGates = 256;

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

// The driver's function; libcuda itself is never linked, so that binaries start without it.
WaitValue wait_value() {
  static const WaitValue function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    check_cuda(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000,
                                                cudaEnableDefault, &result),
               "look up cuStreamWaitValue32");
    if (result != cudaDriverEntryPointSuccess || found == nullptr) {
      throw CudaError("look up cuStreamWaitValue32",
                      "the driver is too old; install one for CUDA 13");
    }
    return reinterpret_cast<WaitValue>(found);
  }();
  return function;
}

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;

CudaEvent make_event() {
  cudaEvent_t event = nullptr;
  // Blocking: a thread that waits sleeps, and leaves its core to those that update parameters.
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
             "make an event");
  return CudaEvent(event);
}

// Words that the GPU waits for. Outlives its stream where host events are still to come.
class GateMemory {
 public:
  GateMemory() {
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, kGates * sizeof(uint32_t),
                             cudaHostAllocMapped | cudaHostAllocPortable),
               "allocate the gates of a stream");
    words_ = static_cast<uint32_t*>(memory);
    std::fill(words_, words_ + kGates, 0u);
    void* on_device = nullptr;
    check_cuda(cudaHostGetDevicePointer(&on_device, memory, 0), "map the gates of a stream");
    device_ = reinterpret_cast<CUdeviceptr>(on_device);
  }
  GateMemory(const GateMemory&) = delete;
  GateMemory& operator=(const GateMemory&) = delete;
  ~GateMemory() { cudaFreeHost(words_); }

  CUdeviceptr address(size_t gate) const { return device_ + gate * sizeof(uint32_t); }
  void open(size_t gate, uint32_t generation) {
    std::atomic_ref(words_[gate]).store(generation, std::memory_order_release);
  }

 private:
  uint32_t* words_ = nullptr;
  CUdeviceptr device_ = 0;
};

class CudaPoint final : public Event::State {
 public:
  CudaPoint(std::string text, int device, FailureClock clock)
      : text_(std::move(text)), device_(device), clock_(std::move(clock)) {}

  // Everything issued to the stream so far; without a record the point is reached.
  void record(cudaStream_t stream) {
    event_ = make_event();
    check_cuda(cudaEventRecord(event_.get(), stream), "record an event of " + text_);
  }

  bool done() const override {
    if (clock_.failure() || !event_) return true;
    return cudaEventQuery(event_.get()) != cudaErrorNotReady;  // an error: wait() tells it
  }

  void wait() override {
    if (event_) {
      const cudaError_t state = cudaEventSynchronize(event_.get());
      // A failure that is known says more than what became of the GPU after it.
      if (std::exception_ptr error = clock_.failure()) std::rethrow_exception(error);
      check_cuda(state, "run " + text_);
    }
    if (std::exception_ptr error = clock_.failure()) std::rethrow_exception(error);
  }

  void on_done(std::function<void()> call) override {
    if (done()) {
      call();
      return;
    }
    // A stream of its own, so that the call does not hold up work that is enqueued meanwhile.
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
    static thread_local cudaStream_t stream = [] {
      cudaStream_t made = nullptr;
      check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "make a stream");
      return made;
    }();
    auto held = std::make_unique<std::function<void()>>(std::move(call));
    check_cuda(cudaStreamWaitEvent(stream, event_.get(), 0), "order a call behind " + text_);
    check_cuda(cudaLaunchHostFunc(
                   stream,
                   [](void* data) {
                     const std::unique_ptr<std::function<void()>> taken(
                         static_cast<std::function<void()>*>(data));
                     (*taken)();
                   },
                   held.get()),
               "call behind " + text_);
    held.release();
  }

  cudaEvent_t event() const { return event_.get(); }
  const FailureClock& clock() const { return clock_; }

 private:
  std::string text_;
  int device_;
  FailureClock clock_;
  CudaEvent event_;  // null: nothing was issued
};

// Lanes' streams are used again: cuBLAS keeps 32 MiB for each stream that it has met, and
// LibTorch's allocator keeps freed memory by streams.
using LaneStreams = FreeList<c10::cuda::CUDAStream>;
LaneStreams& lane_streams(int device, bool high) {
  static auto* const mutex = new std::mutex;
  static auto* const lists = new std::map<std::pair<int, bool>, LaneStreams>;
  const std::lock_guard lock(*mutex);
  return (*lists)[{device, high}];
}

void wait_for_point(cudaStream_t stream, const CudaPoint& point) {
  if (point.event() == nullptr) return;
  check_cuda(cudaStreamWaitEvent(stream, point.event(), 0), "order streams");
}

}  // namespace

class CudaStream::Impl {
 public:
  Impl(const std::string& name, int device, StreamPriority priority)
      : name_(name), device_(device), gates_(std::make_shared<GateMemory>()) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
    int lowest = 0;
    int highest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "read stream priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            priority == StreamPriority::kHigh ? highest : lowest),
               "make stream '" + name + "'");
  }

  ~Impl() {
    cudaStreamSynchronize(stream_);  // its errors were told by the events
    cudaStreamDestroy(stream_);
  }

  Event enqueue(std::span<const Event> after, const std::function<void()>& work) {
    const int64_t sequence = ++sequence_;
    clock_.advance(log_, sequence);
    std::shared_ptr<CudaPoint> point;
    try {
      const c10::cuda::CUDAStreamGuard guard(
          c10::cuda::getStreamFromExternal(stream_, static_cast<c10::DeviceIndex>(device_)));
      for (const Event& event : after) {
        if (event.state()) order_behind(event, sequence);
      }
      point = std::make_shared<CudaPoint>(text(sequence), device_, clock_);
      if (!clock_.failure()) {  // nothing behind a failure runs
        work();
        point->record(stream_);
      }
    } catch (...) {
      log_->record(sequence, std::current_exception());
      if (!point) point = std::make_shared<CudaPoint>(text(sequence), device_, clock_);
    }
    last_ = Event(point);
    for (const size_t gate : taken_) gate_users_[gate] = last_;
    taken_.clear();
    return last_;
  }

  void synchronize() { last_.wait(); }

  cudaStream_t stream() const { return stream_; }

 private:
  std::string text(int64_t sequence) const {
    return "work " + std::to_string(sequence) + " of stream '" + name_ + "'";
  }

  void order_behind(const Event& event, int64_t sequence) {
    if (const auto* point = dynamic_cast<const CudaPoint*>(event.state().get())) {
      clock_.merge(point->clock());
      wait_for_point(stream_, *point);
      return;
    }
    if (event.done()) {
      record_failure_of(event, *log_, sequence);
      return;
    }
    wait_for_host(event, sequence);
  }

  static void record_failure_of(const Event& event, FailureLog& log, int64_t sequence) noexcept {
    try {
      event.wait();  // it is done: throws or returns at once
    } catch (...) {
      log.record(sequence, std::current_exception());
    }
  }

  void wait_for_host(const Event& event, int64_t sequence) {
    const size_t gate = next_gate_++ % kGates;
    if (!gate_users_[gate].done()) {
      // HOST WAIT: the gate's word is still waited for; only a host that is 256 events ahead.
      check_cuda(cudaStreamSynchronize(stream_), "wait for a gate of stream '" + name_ + "'");
    }
    const uint32_t generation = ++generations_[gate];
    const CUresult result =
        wait_value()(stream_, gates_->address(gate), generation, CU_STREAM_WAIT_VALUE_GEQ);
    if (result != CUDA_SUCCESS) {
      throw CudaError("make stream '" + name_ + "' wait for the host",
                      "CUresult " + std::to_string(static_cast<int>(result)));
    }
    taken_.push_back(gate);
    // Opened after a failure too: a GPU that waits for ever cannot even be reset.
    event.state()->on_done([event, gates = gates_, log = log_, gate, generation, sequence] {
      record_failure_of(event, *log, sequence);
      gates->open(gate, generation);
    });
  }

  std::string name_;
  int device_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<GateMemory> gates_;
  std::array<uint32_t, kGates> generations_{};
  std::array<Event, kGates> gate_users_;  // the point behind the gate's last use
  std::vector<size_t> taken_;             // by the work that is being enqueued
  size_t next_gate_ = 0;
  int64_t sequence_ = 0;
  std::shared_ptr<FailureLog> log_ = std::make_shared<FailureLog>();
  FailureClock clock_;
  Event last_;
};

CudaStream::CudaStream(std::string name, int device, StreamPriority priority)
    : name_(std::move(name)) {
  require_gpu(device);
  impl_ = std::make_unique<Impl>(name_, device, priority);
}

CudaStream::~CudaStream() = default;

Event CudaStream::enqueue(std::span<const Event> after, std::function<void()> work) {
  return impl_->enqueue(after, work);
}

void CudaStream::synchronize() {
  impl_->synchronize();
}

CUstream_st* CudaStream::handle() const {
  return impl_->stream();
}

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
  // An event that was never recorded holds nobody up.
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
             "mark a place of a stream");
}

void CudaSideStream::wait_for(int32_t index) {
  check_cuda(
      cudaStreamWaitEvent(state_->stream, state_->marks.at(static_cast<size_t>(index)).get(), 0),
      "order a stream behind a mark");
}

void CudaSideStream::join() {
  check_cuda(cudaEventRecord(state_->joined.get(), state_->stream), "mark the end of a stream");
  check_cuda(cudaStreamWaitEvent(current_cuda_stream(state_->device), state_->joined.get(), 0),
             "order a stream behind another");
}

void adopt_cuda_stream(int device, StreamPriority priority) {
  require_gpu(device);
  const auto index = static_cast<c10::DeviceIndex>(device);
  const bool high = priority == StreamPriority::kHigh;
  c10::cuda::set_device(index);
  // Until the thread ends. Its work is done by then: another thread may have the stream.
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
