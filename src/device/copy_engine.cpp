#include "device/copy_engine.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "base/errors.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

Bytes copy(std::span<std::byte> destination, std::span<const std::byte> source,
           double bytes_per_second) {
  LONGSHORE_CHECK(destination.size() == source.size())
      << destination.size() << " and " << source.size() << " bytes";
  const Clock::time_point begin = Clock::now();
  if (!source.empty()) std::memcpy(destination.data(), source.data(), source.size());
  if (bytes_per_second > 0.0) {
    const std::chrono::duration<double> time(static_cast<double>(source.size()) / bytes_per_second);
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(time));
  }
  return static_cast<Bytes>(source.size());
}

}  // namespace

void CpuCopyEngine::to_device(std::span<std::byte> device, std::span<const std::byte> host) {
  to_device_ += copy(device, host, speeds_.to_device_bytes_per_second);
}

void CpuCopyEngine::to_host(std::span<std::byte> host, std::span<const std::byte> device) {
  to_host_ += copy(host, device, speeds_.to_host_bytes_per_second);
}

}  // namespace longshore
