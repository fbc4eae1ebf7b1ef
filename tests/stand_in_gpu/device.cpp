#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "device/copy_engine.h"
#include "device/copy_speed.h"
#include "device/counting_allocator.h"
#include "device/cuda_device.h"
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "device/gpu_tensors.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/stand_in_gpu/caching_allocator.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore {
namespace {

using Span = std::span<std::byte>;
using ConstSpan = std::span<const std::byte>;

std::vector<CudaDevice>& gpus() {
  static auto* list = new std::vector<CudaDevice>{{.name = "Stand-in",
                                                   .memory_bytes = 16 * kGiB,
                                                   .compute_major = 9,
                                                   .compute_minor = 0,
                                                   .processors = 132,
                                                   .pci = "0000:01:00.0"}};
  return *list;
}

// Registered: host memory that copies may access asynchronously.
struct Registered {
  std::mutex mutex;
  std::vector<Span> ranges;
};
Registered& host_ranges() {
  static auto* value = new Registered;
  return *value;
}

bool is_registered(ConstSpan memory) {
  const std::lock_guard lock(host_ranges().mutex);
  return std::ranges::any_of(host_ranges().ranges, [&](Span range) {
    return memory.data() >= range.data() &&
           memory.data() + memory.size() <= range.data() + range.size();
  });
}

std::atomic<bool> registers_read_only = true;
// All registered memory together may have this many bytes, and had this many at most.
std::atomic<Bytes> most_pinned = std::numeric_limits<Bytes>::max();
std::atomic<Bytes> most_held = 0;

// Returns whether the kernel has mapped the memory as writable.
bool is_writable(const std::byte* place) {
  const auto address = reinterpret_cast<uintptr_t>(place);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0;
    char read = 0, write = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %c%c", &from, &to, &read, &write) != 4) continue;
    if (address >= from && address < to) return write == 'w';
  }
  return false;
}

struct PendingCopy {
  Span to;
  ConstSpan from;
};
struct ThreadsStream {
  std::vector<PendingCopy> pending;
  size_t run = 0;  // number of copies run so far
};
ThreadsStream& stream() {
  static thread_local ThreadsStream value;
  return value;
}

class StandInCopies final : public CopyEngine {
 public:
  void to_device(Span device, ConstSpan host) override {
    copy(device, host, is_registered(host));
    to_device_ += static_cast<Bytes>(host.size());
  }
  void to_host(Span host, ConstSpan device) override {
    copy(host, device, is_registered(host));
    to_host_ += static_cast<Bytes>(host.size());
  }
  void finish() override { finish_cuda_work(0, "copies"); }
  Counts counts() const override { return {to_device_, to_host_}; }

 private:
  // Copies of pageable memory go through the driver's buffers and are done on return.
  static void copy(Span to, ConstSpan from, bool later) {
    LONGSHORE_CHECK(to.size() == from.size()) << to.size() << " and " << from.size() << " bytes";
    if (stand_in::is_broken("link")) throw CudaError("copy", "the stand-in's link is broken");
    stream().pending.push_back({to, from});
    if (!later) stand_in::run_stream();
  }

  std::atomic<Bytes> to_device_ = 0, to_host_ = 0;
};

// Budgets: the meters of the budgets in force, which end in reverse order.
struct Budgets {
  std::mutex mutex;
  std::vector<std::shared_ptr<WorkspaceMeter>> meters;
};
Budgets& budgets() {
  static auto* value = new Budgets;
  return *value;
}

class AllocatorGauge final : public WorkspaceMeter::Gauge {
 public:
  WorkspaceUse use() const override {
    WorkspaceUse use = stand_in::caching_allocator().use();
    use.retries -= retries_before_;
    return use;
  }
  void reset_peak() override { stand_in::caching_allocator().reset_peak(); }

 private:
  int64_t retries_before_ = stand_in::caching_allocator().use().retries;
};

// StandInArena: an arena of the GPU in host memory.
class StandInArena final : public DeviceArena {
 public:
  explicit StandInArena(Bytes bytes) : memory_(make_host_arena(bytes)), taken_(bytes) {
    stand_in::caching_allocator().add_taken(taken_);
  }
  StandInArena(const StandInArena&) = delete;
  StandInArena& operator=(const StandInArena&) = delete;
  ~StandInArena() override { stand_in::caching_allocator().add_taken(-taken_); }
  std::span<std::byte> bytes() const override { return memory_->bytes(); }

 private:
  std::unique_ptr<DeviceArena> memory_;
  Bytes taken_;
};

std::atomic<int> cpu_branches = 0;
std::atomic<int> times_prepared = 0;
std::atomic<int> times_registered = 0;

std::string& broken() {
  static auto* part = new std::string;
  return *part;
}

}  // namespace

namespace stand_in {

void set_gpus(std::vector<CudaDevice> list) {
  gpus() = std::move(list);
  caching_allocator().set_total(gpus().empty() ? 0 : gpus().front().memory_bytes);
}

CUstream_st* side_stream() {
  static std::byte it{};
  return reinterpret_cast<CUstream_st*>(&it);
}

void register_read_only(bool can) {
  registers_read_only = can;
}

void pin_at_most(Bytes bytes) {
  most_pinned = bytes;
  most_held = 0;
}

Bytes most_registered() {
  return most_held;
}

bool registered(std::span<const std::byte> memory) {
  return is_registered(memory);
}

int registrations() {
  return times_registered;
}

int prepared() {
  return times_prepared;
}

void break_part(const std::string& part) {
  broken() = part;
}

bool is_broken(const char* part) {
  return broken() == part;
}

bool tensors_are_gpus() {
  if (cpu_branches > 0) return false;
  const std::lock_guard lock(budgets().mutex);
  return !budgets().meters.empty();
}

void refuse_tensor(Bytes bytes) {
  std::shared_ptr<WorkspaceMeter> meter;
  {
    const std::lock_guard lock(budgets().mutex);
    meter = budgets().meters.back();
  }
  meter->refuse(current_workspace_label(), bytes);
}

// Runs the stream's copies up to number `end`.
void run_stream_to(size_t end) {
  ThreadsStream& own = stream();
  size_t count = 0;
  for (; count < own.pending.size() && own.run + count < end; ++count) {
    const PendingCopy& copy = own.pending[count];
    if (copy.from.empty()) continue;
    std::memcpy(copy.to.data(), copy.from.data(), copy.from.size());
    if (is_broken("copies")) copy.to.back() = std::byte{0x55};
  }
  own.pending.erase(own.pending.begin(), own.pending.begin() + static_cast<ptrdiff_t>(count));
  own.run += count;
}

void run_stream() {
  run_stream_to(std::numeric_limits<size_t>::max());
}

}  // namespace stand_in

namespace fakes {

CpuBranches::CpuBranches() {
  cpu_branches += 1;
}
CpuBranches::~CpuBranches() {
  cpu_branches -= 1;
}

}  // namespace fakes

// device/gpu_tensors.h

bool on_gpu(const at::Tensor& x) {
  stand_in::run_stream();
  return x.is_cpu() && cpu_branches == 0;
}

at::Device gpu_tensors(int) {
  return at::kCPU;
}

// device/cuda_runtime.h

std::vector<CudaDevice> cuda_devices() {
  return gpus();
}

std::string cuda_driver_version() {
  return "13.0";
}

std::string cuda_trouble() {
  return "";
}

void require_gpu(int device) {
  const auto count = static_cast<int>(gpus().size());
  if (device >= 0 && device < count) return;
  throw ConfigError("device.kind: there is no GPU " + std::to_string(device));
}

int compute_capability(int device) {
  const CudaDevice& gpu = gpus().at(static_cast<size_t>(device));
  return 10 * gpu.compute_major + gpu.compute_minor;
}

Bytes cuda_free_bytes(int device) {
  require_gpu(device);
  return stand_in::caching_allocator().free_bytes();
}

bool gpus_register_read_only() {
  return registers_read_only;
}

HostRegistration::HostRegistration(std::span<std::byte> memory, bool read_only) {
  if (memory.empty() || gpus().empty()) return;
  if (!(read_only && registers_read_only) && !is_writable(memory.data())) {
    throw CudaError("cudaHostRegister", "the memory is mapped to be read only");
  }
  if (is_registered(memory)) throw CudaError("cudaHostRegister", "registered already");
  const std::lock_guard lock(host_ranges().mutex);
  Bytes held = 0;
  for (const Span range : host_ranges().ranges) held += static_cast<Bytes>(range.size());
  if (held + static_cast<Bytes>(memory.size()) > most_pinned) {
    refusal_ = "out of memory";
    return;
  }
  most_held = std::max<Bytes>(most_held, held + static_cast<Bytes>(memory.size()));
  host_ranges().ranges.push_back(memory);
  times_registered += 1;
  memory_ = memory.data();
}

HostRegistration::~HostRegistration() {
  if (memory_ == nullptr) return;
  const std::lock_guard lock(host_ranges().mutex);
  std::erase_if(host_ranges().ranges, [&](Span range) { return range.data() == memory_; });
}

HostRegistration::HostRegistration(HostRegistration&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), refusal_(std::move(other.refusal_)) {}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(refusal_, other.refusal_);
  return *this;
}

bool registered_with_gpus(std::span<const std::byte> memory) {
  return memory.empty() || gpus().empty() || is_registered(memory);
}

// device/cuda_device.h, device_memory.h, copy_engine.h, copy_speed.h

std::unique_ptr<DeviceArena> make_cuda_arena(Bytes bytes, int device) {
  require_gpu(device);
  if (bytes > cuda_free_bytes(device)) {
    throw OutOfMemoryError("device memory: the stand-in has " +
                           format_bytes(cuda_free_bytes(device)) + " free, not " +
                           format_bytes(bytes));
  }
  return std::make_unique<StandInArena>(bytes);
}

std::unique_ptr<CopyEngine> make_cuda_copy_engine(int device) {
  require_gpu(device);
  return std::make_unique<StandInCopies>();
}

void load_gpu_kernels() {}

void prepare_cuda(int device) {
  require_gpu(device);
  times_prepared += 1;
  stand_in::caching_allocator().set_total(gpus().front().memory_bytes);
}

void use_growing_segments() {}
void clear_cublas_workspaces() {}
void give_back_cached_memory() noexcept {
  stand_in::caching_allocator().empty_cache();
}

CudaWorkspaceBudget::CudaWorkspaceBudget(const DeviceMemory& memory, int device) : device_(device) {
  require_gpu(device_);
  memory.workspace()->follow(std::make_shared<AllocatorGauge>());
  stand_in::caching_allocator().reset_peak();
  stand_in::caching_allocator().set_limit(memory.workspace_cap());
  const std::lock_guard lock(budgets().mutex);
  budgets().meters.push_back(memory.workspace());
}
CudaWorkspaceBudget::~CudaWorkspaceBudget() {
  stand_in::caching_allocator().set_limit(std::numeric_limits<Bytes>::max() / 2);
  const std::lock_guard lock(budgets().mutex);
  budgets().meters.pop_back();
}

std::vector<CopySpeed> measure_copy_speeds(int, const std::vector<Bytes>&, int) {
  return {};
}

// device/cuda_stream.h

void adopt_cuda_stream(int device, StreamPriority) {
  require_gpu(device);
}

void finish_cuda_work(int, const std::string&) {
  stand_in::run_stream();
}

// Runs its work at once, before the thread's copies that it was not told to wait for.
struct CudaSideStream::State {
  std::vector<size_t> marks;
};

CudaSideStream::CudaSideStream(int device, int32_t marks)
    : state_(std::make_unique<State>(std::vector<size_t>(static_cast<size_t>(marks)))) {
  require_gpu(device);
}
CudaSideStream::~CudaSideStream() = default;

CUstream_st* CudaSideStream::handle() const {
  return stand_in::side_stream();
}
void CudaSideStream::mark(int32_t index) {
  state_->marks.at(static_cast<size_t>(index)) = stream().run + stream().pending.size();
}
void CudaSideStream::wait_for(int32_t index) {
  stand_in::run_stream_to(state_->marks.at(static_cast<size_t>(index)));
}
void CudaSideStream::join() {}

struct CudaMark::State {
  size_t end = 0;  // number of the thread's copies before the mark
};

CudaMark::CudaMark(int device) : state_(std::make_unique<State>()) {
  require_gpu(device);
}
CudaMark::~CudaMark() = default;
void CudaMark::record() {
  state_->end = stream().run + stream().pending.size();
}
void CudaMark::wait() const {
  stand_in::run_stream_to(state_->end);
}

CUstream_st* current_cuda_stream(int) {
  return nullptr;
}

}  // namespace longshore
