#include "device/copy_engine.h"

#include <cstring>

#include "base/errors.h"

namespace longshore {
namespace {

Bytes copy(std::span<std::byte> destination, std::span<const std::byte> source) {
  LONGSHORE_CHECK(destination.size() == source.size())
      << destination.size() << " and " << source.size() << " bytes";
  if (!source.empty()) std::memcpy(destination.data(), source.data(), source.size());
  return static_cast<Bytes>(source.size());
}

}  // namespace

void CpuCopyEngine::to_device(std::span<std::byte> device, std::span<const std::byte> host) {
  counts_.to_device += copy(device, host);
}

void CpuCopyEngine::to_host(std::span<std::byte> host, std::span<const std::byte> device) {
  counts_.to_host += copy(host, device);
}

}  // namespace longshore
