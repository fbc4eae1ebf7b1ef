#include "comm/collectives/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/awake_clock.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/texts.h"
#include "comm/operations/operation.h"
#include "device/cuda_check.h"
#include "device/cuda_stream.h"

namespace longshore {
namespace {

// NcclCommunicator on NCCL's own interface: non-blocking communicators on a separate stream, waits
// that check the watchdog, and an abort when the run has failed.

using Clock = AwakeClock;

constexpr std::chrono::microseconds kLook(50);
// The limit of multiprocessors that one collective uses. Each takes compute capacity and has
// buffers for every other rank outside the device's cap.
constexpr int kMaxCtas = 16;
// The limit of an orderly end, which NCCL may not reach.
constexpr std::chrono::seconds kEndTime(10);
// Bytes of NCCL's own text in a message.
constexpr size_t kMostDetail = 400;

// A call of NCCL failed, which is not yet the run's failure: the death of another rank shows here
// first. `remote` means that NCCL blames the network or another rank.
struct NcclError : std::runtime_error {
  NcclError(const std::string& text, bool is_remote) : runtime_error(text), remote(is_remote) {}
  bool remote;
};

// NCCL keeps its last warning, which says what failed ("No space left on device"). NCCL_DEBUG would
// print it on standard output, where results go.
void check_nccl(ncclResult_t result, const char* operation) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  std::string text = std::string(operation) + ": " + ncclGetErrorString(result);
  const char* const detail = ncclGetLastError(nullptr);
  if (detail != nullptr && *detail != '\0') text += ": " + printable(detail, kMostDetail);
  throw NcclError(text, result == ncclRemoteError);
}

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
  return Event(event);
}

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;

struct DeviceBytesDeleter {
  void operator()(void* bytes) const { cudaFree(bytes); }
};

// Returns a stream that comes before those of the products, whose blocks fill every multiprocessor:
// the other ranks wait for this one's part of a collective.
Stream make_stream() {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for streams' priorities");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
             "make a stream");
  return Stream(stream);
}

// NCCL's handle. Only an abort ends it without waiting for other ranks.
struct CommDeleter {
  void operator()(ncclComm_t comm) const { ncclCommAbort(comm); }
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(GroupOptions options, std::shared_ptr<Watchdog> watchdog,
                   const ShareFirst& share_first, int32_t device_index)
      : Communicator(options.name, static_cast<int32_t>(options.members.size()),
                     index_in_group(options)),
        options_(std::move(options)),
        watchdog_(std::move(watchdog)),
        device_(device_index),
        key_(group_key(options_.name, options_.members)) {
    watchdog_->join_group(key_, options_.members);
    check_cuda(cudaSetDevice(device_), "choose the GPU");
    stream_ = make_stream();
    void* token = nullptr;
    check_cuda(cudaMalloc(&token, 1), "allocate a barrier's byte");
    token_.reset(token);
    connect(share_first);
  }
  ~NcclCommunicator() override { end(); }

 protected:
  Completion start(const Collective& collective) override {
    check_for_nccl(collective, name());
    LONGSHORE_CHECK(collective.kind != CommKind::kScalars)
        << "scalars are the host's: World::all() adds them";
    Operation operation = begin(collective.kind, collective.label, collective.payload());
    // The collective waits for this thread's stream, which produced the buffers' contents.
    const Event before = make_event();
    check_cuda(cudaEventRecord(before.get(), current_cuda_stream(device_)), "record an event");
    check_cuda(cudaStreamWaitEvent(stream_.get(), before.get(), 0), "order a stream");
    bool issued = false;
    wait_until(operation, [&] {
      if (!issued) {
        issued = true;
        check_nccl(ncclGroupStart(), "ncclGroupStart");
        issue(collective);
        check_nccl(ncclGroupEnd(), "ncclGroupEnd");
      }
      return ready();
    });
    Event done = make_event();
    check_cuda(cudaEventRecord(done.get(), stream_.get()), "record an event");
    return Completion(std::make_unique<Pending>(this, std::move(operation), std::move(done)));
  }

 private:
  class Pending : public Completion::State {
   public:
    Pending(NcclCommunicator* owner, Operation operation, Event done)
        : owner_(owner), operation_(std::move(operation)), done_(std::move(done)) {}
    void wait() override {
      owner_->wait_until(operation_, [this] {
        const cudaError_t state = cudaEventQuery(done_.get());
        if (state != cudaErrorNotReady) check_cuda(state, "run a collective");
        return state == cudaSuccess;
      });
      owner_->watchdog_->finished(owner_->key_, operation_.sequence);
    }

   private:
    NcclCommunicator* owner_;
    Operation operation_;
    Event done_;
  };

  Operation begin(CommKind kind, const OpLabel& label, Bytes bytes) {
    Operation operation{kind, label, name(), ++sequence_, bytes};
    watchdog_->begun(key_, operation);
    return operation;
  }

  void connect(const ShareFirst& share_first) {
    const Operation operation{CommKind::kBarrier, {"connecting", {}}, name(), ++sequence_, 0};
    ncclUniqueId id{};
    if (index() == 0) {
      or_fail(operation, [&] { check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId"); });
    }
    const std::string shared = share_first(std::string(id.internal, sizeof id.internal));
    if (shared.size() != sizeof id.internal) throw CommError("NCCL's id has a wrong size");
    std::memcpy(id.internal, shared.data(), sizeof id.internal);
    watchdog_->begun(key_, operation);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kMaxCtas;
    or_fail(operation, [&] {
      ncclComm_t comm = nullptr;
      const ncclResult_t result = ncclCommInitRankConfig(&comm, size(), id, index(), &config);
      comm_.reset(comm);
      check_nccl(result, "ncclCommInitRank");
    });
    wait_until(operation, [this] { return ready(); });
    watchdog_->finished(key_, operation.sequence);
  }

  // Ends together with the other ranks: after this rank's last collective its proxy may still send
  // to another machine, and an abort would leave the receiver waiting. Past the limit, or if the
  // run has failed, the handle's owner aborts.
  void end() noexcept {
    if (comm_ == nullptr || watchdog_->has_failure() || std::uncaught_exceptions() > 0) return;
    try {
      const Clock::time_point begin = Clock::now();
      check_nccl(ncclCommFinalize(comm_.get()), "ncclCommFinalize");
      while (!ready()) {
        if (watchdog_->has_failure() || Clock::now() - begin > kEndTime) return;
        std::this_thread::sleep_for(kLook);
      }
      static_cast<void>(ncclCommDestroy(comm_.release()));
    } catch (const std::exception& error) {
      log_debug(std::string("a communicator ends without its other ranks: ") + error.what());
    }
  }

  // Returns whether NCCL has accepted everything that it was given.
  bool ready() const {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_.get(), &state), "ncclCommGetAsyncError");
    check_nccl(state, "NCCL");
    return state == ncclSuccess;
  }

  void issue(const Collective& collective) {
    if (collective.kind == CommKind::kBarrier) {
      check_nccl(ncclAllReduce(token_.get(), token_.get(), 1, ncclInt8, ncclSum, comm_.get(),
                               stream_.get()),
                 "ncclAllReduce");
    }
    for (const auto& segment : collective.segments) {
      std::byte* const data = segment.data();
      const size_t floats = segment.size() / sizeof(float), ranks = static_cast<size_t>(size());
      std::byte* const mine = data + segment.size() / ranks * static_cast<size_t>(index());
      switch (collective.kind) {
        case CommKind::kAllGather:
          check_nccl(ncclAllGather(mine, data, segment.size() / ranks, ncclInt8, comm_.get(),
                                   stream_.get()),
                     "ncclAllGather");
          break;
        case CommKind::kReduceScatter:
          check_nccl(ncclReduceScatter(data, mine, floats / ranks, ncclFloat, ncclSum, comm_.get(),
                                       stream_.get()),
                     "ncclReduceScatter");
          break;
        case CommKind::kAllReduce:
          check_nccl(
              ncclAllReduce(data, data, floats, ncclFloat, ncclSum, comm_.get(), stream_.get()),
              "ncclAllReduce");
          break;
        default:
          check_nccl(ncclBroadcast(data, data, segment.size(), ncclInt8, collective.root,
                                   comm_.get(), stream_.get()),
                     "ncclBroadcast");
      }
    }
  }

  template <typename Condition>
  void wait_until(const Operation& operation, const Condition& condition) {
    const Clock::time_point begin = Clock::now();
    const auto waited = [&] { return seconds_since(begin); };
    or_fail(operation, [&] {
      while (!condition()) {
        ready();
        if (watchdog_->has_failure()) fail(operation, waited());
        if (Clock::now() - begin > options_.timeout) {
          watchdog_->blame_delay(key_, operation, waited());
          fail(operation, waited());
        }
        std::this_thread::sleep_for(kLook);
      }
    });
    counters().add_wait(operation.kind, operation.label.unit, waited());
  }

  // Makes a failed call of NCCL the run's failure, with the rank that caused it.
  template <typename Work>
  void or_fail(const Operation& operation, const Work& work) {
    const Clock::time_point begin = Clock::now();
    try {
      work();
    } catch (const NcclError& error) {
      const int32_t neighbour = options_.members[index() == 0 ? 1 : 0];
      watchdog_->blame_break(error.remote ? neighbour : options_.rank, operation, error.what());
      fail(operation, seconds_since(begin));
    }
  }

  [[noreturn]] void fail(const Operation& operation, double waited) {
    const std::string message =
        watchdog_->message(seconds_text(waited) + " for " + operation.text());
    comm_.reset();  // aborts, so that kernels that wait for other ranks end
    throw CommError(message);
  }

  GroupOptions options_;
  std::shared_ptr<Watchdog> watchdog_;
  int32_t device_ = 0;
  std::string key_;
  int64_t sequence_ = 0;
  Stream stream_;
  std::unique_ptr<void, DeviceBytesDeleter> token_;  // the byte that barriers reduce
  std::unique_ptr<std::remove_pointer_t<ncclComm_t>, CommDeleter> comm_;
};

// By default NCCL no longer registers plain cudaMalloc memory, but it registers its own allocations
// (driver virtual memory with handles that other ranks can open).
void* nccl_allocate(size_t bytes, std::string& reason) {
  void* memory = nullptr;
  const ncclResult_t result = ncclMemAlloc(&memory, bytes);
  if (result == ncclSuccess) return memory;
  reason = std::string("NCCL: ") + ncclGetErrorString(result);
  return nullptr;
}

}  // namespace

std::string nccl_version() {
  int code = 0;  // 22809 is 2.28.9
  if (ncclGetVersion(&code) != ncclSuccess) return "";
  return std::to_string(code / 10'000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

std::unique_ptr<Communicator> make_nccl_communicator(const GroupOptions& options,
                                                     std::shared_ptr<Watchdog> watchdog,
                                                     const ShareFirst& share_first,
                                                     int32_t device_index) {
  return std::make_unique<NcclCommunicator>(options, std::move(watchdog), share_first,
                                            device_index);
}

std::unique_ptr<DeviceArena> make_nccl_arena(Bytes bytes, int device) {
  return make_gpu_arena(bytes, device, {nccl_allocate, [](void* memory) { ncclMemFree(memory); }});
}

}  // namespace longshore
