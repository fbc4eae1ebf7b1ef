// Copy speeds in the build with CUDA.
#include "base/measurement.h"
#include "device/copy_speed.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>

#include "device/copy_engine.h"
#include "device/cuda_check.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "device/host_mapping.h"
#include "device/thread_stream.h"

namespace longshore {
namespace {

// Bytes copied in each direction in a round.
constexpr Bytes kRoundBytes = kGiB;

struct HostDeleter {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};

double best_of(int rounds, const std::function<void()>& round) {
  double best = 0.0;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    round();
    best = std::max(best, static_cast<double>(kRoundBytes) / seconds_since(begin) / 1e9);
  }
  return best;
}

double best_of_cuda(int rounds, std::span<std::byte> on_gpu, bool down) {
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, kRoundBytes, cudaHostAllocDefault), "allocate pinned memory");
  const std::unique_ptr<std::byte, HostDeleter> host(static_cast<std::byte*>(memory));
  std::memset(host.get(), 1, kRoundBytes);
  return best_of(rounds, [&] {
    check_cuda(down ? cudaMemcpyAsync(on_gpu.data(), host.get(), kRoundBytes,
                                      cudaMemcpyHostToDevice, nullptr)
                    : cudaMemcpyAsync(host.get(), on_gpu.data(), kRoundBytes,
                                      cudaMemcpyDeviceToHost, nullptr),
               "copy");
    check_cuda(cudaStreamSynchronize(nullptr), "copy");
  });
}

// Makes a copy lane as the engine does: a thread with a CUDA stream of high priority.
std::unique_ptr<ThreadStream> make_lane(const char* name, int device) {
  return std::make_unique<ThreadStream>(name, std::nullopt, [device] {
    adopt_cuda_stream(device, StreamPriority::kHigh);
    // As in a run, a thread that waits for the GPU sleeps.
    check_cuda(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "let waiting threads sleep");
  });
}

}  // namespace

std::vector<CopySpeed> measure_copy_speeds(int device, const std::vector<Bytes>& sizes,
                                           int rounds) {
  require_gpu(device);
  const auto arena = make_cuda_arena(kRoundBytes, device);
  const std::span<std::byte> on_gpu = arena->bytes();
  const HostMapping mapping(kRoundBytes, "the benchmark's arena");
  const std::span<std::byte> host = mapping.bytes();
  std::fill(host.begin(), host.end(), std::byte{1});
  const HostRegistration registration(host);
  const auto copies = make_cuda_copy_engine(device);
  std::vector<CopySpeed> speeds;
  for (const bool down : {true, false}) {
    const double best = best_of_cuda(rounds, on_gpu, down);
    const auto lane = make_lane(down ? "h2d" : "d2h", device);
    for (const Bytes bytes : sizes) {
      const double ours = best_of(rounds, [&] {
        for (Bytes done = 0; done < kRoundBytes; done += bytes) {
          const auto count = static_cast<size_t>(std::min(bytes, kRoundBytes - done));
          const auto there = on_gpu.subspan(static_cast<size_t>(done), count);
          const auto here = host.subspan(static_cast<size_t>(done), count);
          lane->enqueue({}, [&copies, down, there, here] {
            down ? copies->to_device(there, here) : copies->to_host(here, there);
            copies->finish();
          });
        }
        lane->synchronize();
      });
      speeds.push_back({down ? "h2d" : "d2h", bytes, ours, best});
    }
  }
  return speeds;
}

std::pair<double, double> measure_copies_both_ways(int device, Bytes bytes, int rounds) {
  require_gpu(device);
  const auto arena = make_cuda_arena(2 * kRoundBytes, device);
  const HostMapping mapping(2 * kRoundBytes, "the benchmark's arena");
  const std::span<std::byte> on_gpu = arena->bytes(), host = mapping.bytes();
  std::fill(host.begin(), host.end(), std::byte{1});
  const HostRegistration registration(host);
  const auto copies = make_cuda_copy_engine(device);
  const auto up = make_lane("h2d", device), down = make_lane("d2h", device);
  const double best = best_of(rounds, [&] {
    for (Bytes done = 0; done < kRoundBytes; done += bytes) {
      const auto count = static_cast<size_t>(std::min(bytes, kRoundBytes - done));
      const auto at = static_cast<size_t>(done), other = static_cast<size_t>(kRoundBytes + done);
      up->enqueue({}, [&, at, count] {
        copies->to_device(on_gpu.subspan(at, count), host.subspan(at, count));
        copies->finish();
      });
      down->enqueue({}, [&, other, count] {
        copies->to_host(host.subspan(other, count), on_gpu.subspan(other, count));
        copies->finish();
      });
    }
    up->synchronize();
    down->synchronize();
  });
  return {best, best};
}

}  // namespace longshore
