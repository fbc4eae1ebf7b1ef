// The build with CUDA: a GPU's arena, copies and LibTorch's allocator.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <typeinfo>
#include <utility>

#include "base/errors.h"
#include "base/log.h"
#include "base/mutex.h"
#include "device/copy_engine.h"
#include "device/counting_allocator.h"
#include "device/cuda_check.h"
#include "device/cuda_device.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

c10::DeviceIndex index_of(int device) {
  return static_cast<c10::DeviceIndex>(device);
}

class GpuArena final : public DeviceArena {
 public:
  GpuArena(Bytes bytes, int device, GpuAllocator calls)
      : device_(device), size_(static_cast<size_t>(bytes)), calls_(std::move(calls)) {
    if (bytes == 0) return;
    const c10::cuda::CUDAGuard guard(index_of(device));
    std::string reason;
    data_ = static_cast<std::byte*>(calls_.allocate(size_, reason));
    if (data_ == nullptr) {
      throw OutOfMemoryError("device memory: GPU " + std::to_string(device) + " refused " +
                             format_bytes(bytes) + " for the plan's buffers (" + reason + "); " +
                             format_bytes(cuda_free_bytes(device)) +
                             " are free there; lower offload.device_memory");
    }
    noted_.emplace(std::span(data_, size_));
    check_cuda(cudaMemset(data_, 0, size_), "clear the plan's buffers");
    check_cuda(cudaDeviceSynchronize(), "clear the plan's buffers");
  }
  GpuArena(const GpuArena&) = delete;
  GpuArena& operator=(const GpuArena&) = delete;
  ~GpuArena() override {
    if (data_ == nullptr) return;
    const c10::cuda::CUDAGuard guard(index_of(device_));
    calls_.release(data_);
  }
  std::span<std::byte> bytes() const override { return {data_, size_}; }

 private:
  int device_;
  std::byte* data_ = nullptr;
  size_t size_;
  GpuAllocator calls_;
  std::optional<GpuBytes> noted_;
};

void* cuda_allocate(size_t bytes, std::string& reason) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which the caller's exception reports
    reason = cudaGetErrorString(status);
    return nullptr;
  }
  check_cuda(status, "allocate the plan's buffers, " + format_bytes(static_cast<Bytes>(bytes)));
  return memory;
}

class CudaCopyEngine final : public CopyEngine {
 public:
  explicit CudaCopyEngine(int device) : device_(device) {}

  void to_device(std::span<std::byte> device, std::span<const std::byte> host) override {
    copy(device, host, cudaMemcpyHostToDevice, "to");
    to_device_ += static_cast<Bytes>(host.size());
  }
  void to_host(std::span<std::byte> host, std::span<const std::byte> device) override {
    copy(host, device, cudaMemcpyDeviceToHost, "from");
    to_host_ += static_cast<Bytes>(host.size());
  }
  void finish() override { finish_cuda_work(device_, "copies"); }
  Counts counts() const override { return {to_device_, to_host_}; }

 private:
  void copy(std::span<std::byte> destination, std::span<const std::byte> source,
            cudaMemcpyKind kind, const char* direction) const {
    LONGSHORE_CHECK(destination.size() == source.size())
        << destination.size() << " and " << source.size() << " bytes";
    if (source.empty()) return;
    check_cuda(cudaMemcpyAsync(destination.data(), source.data(), source.size(), kind,
                               current_cuda_stream(device_)),
               "copy " + format_bytes(static_cast<Bytes>(source.size())) + " " + direction +
                   " GPU " + std::to_string(device_));
  }

  int device_;
  std::atomic<Bytes> to_device_ = 0;
  std::atomic<Bytes> to_host_ = 0;
};

// Names the meter that the observer of LibTorch's allocator asks. The observer is attached once in
// a process.
struct Observed {
  Mutex mutex;
  std::shared_ptr<WorkspaceMeter> meter LONGSHORE_GUARDED_BY(mutex);
};
Observed& observed() {
  static auto* value = new Observed;
  return *value;
}

// Runs inside LibTorch's allocator, outside its lock, when it finds no memory under its limit; its
// exception leaves the LibTorch call that asked for memory.
void refuse(int64_t, size_t bytes, size_t, size_t) {
  std::shared_ptr<WorkspaceMeter> meter;
  {
    const MutexLock lock(observed().mutex);
    meter = observed().meter;
  }
  if (meter) meter->refuse(current_workspace_label(), static_cast<Bytes>(bytes));
}

class AllocatorGauge final : public WorkspaceMeter::Gauge {
 public:
  explicit AllocatorGauge(int device) : device_(device) {}
  WorkspaceUse use() const override {
    const auto stats = allocator::getDeviceStats(index_of(device_));
    const auto& held = stats.reserved_bytes[0];
    const auto& tensors = stats.allocated_bytes[0];
    return {.held = held.current,
            .held_peak = held.peak,
            .tensors = tensors.current,
            .tensors_peak = tensors.peak,
            .retries = stats.num_alloc_retries - retries_before_};
  }
  void reset_peak() override { allocator::resetPeakStats(index_of(device_)); }

 private:
  int device_;
  // Retries of the process before this gauge existed.
  int64_t retries_before_ = allocator::getDeviceStats(index_of(device_)).num_alloc_retries;
};

}  // namespace

std::unique_ptr<DeviceArena> make_gpu_arena(Bytes bytes, int device, GpuAllocator calls) {
  require_gpu(device);
  return std::make_unique<GpuArena>(bytes, device, std::move(calls));
}

std::unique_ptr<DeviceArena> make_cuda_arena(Bytes bytes, int device) {
  return make_gpu_arena(bytes, device, {cuda_allocate, [](void* memory) { cudaFree(memory); }});
}

std::unique_ptr<CopyEngine> make_cuda_copy_engine(int device) {
  require_gpu(device);
  return std::make_unique<CudaCopyEngine>(device);
}

bool on_gpu(const at::Tensor& x) {
  return x.is_cuda();
}

at::Device gpu_tensors(int gpu) {
  return {at::kCUDA, index_of(gpu)};
}

namespace {

// The path of LibTorch's CUDA library, which is in the directory of its CPU library. A bare name
// would be searched in the run path of the library that calls dlopen, which under a sanitizer is
// the sanitizer's.
std::string cuda_library() {
  constexpr const char* name = "libtorch_cuda.so";
  Dl_info cpu_library{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &cpu_library) == 0) return name;
  const auto path = std::filesystem::path(cpu_library.dli_fname).replace_filename(name);
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable) ? path.string() : name;
}

}  // namespace

// 1 GB of code, which registers itself. LibTorch looks for registered kernels once, at the first
// use that could be a GPU's, and keeps what it found.
void load_gpu_kernels() {
  if (dlopen(cuda_library().c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* const reason = dlerror();
    throw ConfigError(std::string("device.kind: LibTorch's CUDA kernels cannot be loaded (") +
                      (reason == nullptr ? "no reason given" : reason) +
                      "); install a LibTorch with CUDA, or set device.kind = \"cpu\"");
  }
  const at::CUDAHooksInterface& found = at::detail::getCUDAHooks();
  if (typeid(found) != typeid(at::CUDAHooksInterface)) return;
  throw ConfigError(
      "device.kind: LibTorch was used before its GPU kernels were loaded, and it looks for them "
      "once in a process; call longshore::load_gpu_kernels() or prepare_cuda() at the start of the "
      "program, before torch::manual_seed, a backward or anything else of LibTorch, or set "
      "device.kind = \"cpu\"");
}

void prepare_cuda(int device) {
  require_gpu(device);
  // cuBLAS reads this at its first handle; without it products may differ between runs. It is set
  // once: threads of an earlier engine may be reading the environment.
  static const bool workspaces_fixed = setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1) == 0;
  LONGSHORE_CHECK(workspaces_fixed);
  if (cuda_devices().at(static_cast<size_t>(device)).maps_memory) {
    use_growing_segments();
  } else {
    log_warning("GPU " + std::to_string(device) + " " + kFixedSegments);
  }
  load_gpu_kernels();
  at::Context& context = at::globalContext();
  LONGSHORE_CHECK(context.hasCUDA()) << "LibTorch finds no GPU where the CUDA runtime has one";
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);  // filling would cost a pass over memory
  context.setFloat32MatmulPrecision("highest");
  // Partial sums of a product stay in fp32, as on the CPU.
  context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
  context.setBenchmarkCuDNN(false);
  context.lazyInitDevice(at::kCUDA);
  check_cuda(cudaSetDevice(device), "choose GPU " + std::to_string(device));
  // A thread that waits for the GPU sleeps; spinning would take a core from the update for each
  // lane.
  check_cuda(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "let waiting threads sleep");
}

void use_growing_segments() {
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

void clear_cublas_workspaces() {
  // The symbol is at::cuda::clearCublasWorkspaces() of the library, which is loaded but not linked.
  auto* const clear =
      reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv"));
  LONGSHORE_CHECK(clear != nullptr) << "LibTorch has no at::cuda::clearCublasWorkspaces()";
  clear();
}

void give_back_cached_memory() noexcept {
  try {
    clear_cublas_workspaces();
    allocator::emptyCache();
  } catch (const std::exception&) {
    // A GPU that failed keeps its memory; the next use of the GPU reports the failure.
  }
}

CudaWorkspaceBudget::CudaWorkspaceBudget(const DeviceMemory& memory, int device) : device_(device) {
  const Bytes total = cuda_devices().at(static_cast<size_t>(device)).memory_bytes;
  static const bool attached = [] {
    allocator::attachOutOfMemoryObserver(refuse);
    return true;
  }();
  static_cast<void>(attached);
  {
    const MutexLock lock(observed().mutex);
    before_ = std::exchange(observed().meter, memory.workspace());
  }
  memory.workspace()->follow(std::make_shared<AllocatorGauge>(device));
  allocator::resetPeakStats(index_of(device));
  allocator::setMemoryFraction(
      std::min(1.0, static_cast<double>(memory.workspace_cap()) / static_cast<double>(total)),
      index_of(device));
}

CudaWorkspaceBudget::~CudaWorkspaceBudget() {
  {
    const MutexLock lock(observed().mutex);
    observed().meter = std::move(before_);
  }
  allocator::setMemoryFraction(1.0, index_of(device_));
}

}  // namespace longshore
