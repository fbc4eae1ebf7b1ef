// CopyEngine: copies bytes between host and device memory and counts them. The engine owns it; the
// lanes that copy call it at the same time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/bytes.h"

namespace longshore {

class CopyEngine {
 public:
  // Bytes copied so far in each direction.
  struct Counts {
    Bytes to_device = 0;
    Bytes to_host = 0;
  };

  virtual ~CopyEngine() = default;
  // Both spans have the same length and do not overlap. On the CPU device the copy is done on
  // return; on a GPU it is queued on the current stream.
  virtual void to_device(std::span<std::byte> device, std::span<const std::byte> host) = 0;
  virtual void to_host(std::span<std::byte> host, std::span<const std::byte> device) = 0;
  // Blocks until this thread's copies are done; call it before their source memory is released.
  virtual void finish() = 0;
  virtual Counts counts() const = 0;
};

// Speed limits of an emulated link, in bytes per second; a copy takes at least that time.
struct LinkSpeeds {
  double to_device_bytes_per_second = 0.0;  // 0: no limit
  double to_host_bytes_per_second = 0.0;
};

// The copy engine of the CPU device, whose memory is host memory.
class CpuCopyEngine final : public CopyEngine {
 public:
  explicit CpuCopyEngine(const LinkSpeeds& speeds = {}) : speeds_(speeds) {}
  void to_device(std::span<std::byte> device, std::span<const std::byte> host) override;
  void to_host(std::span<std::byte> host, std::span<const std::byte> device) override;
  void finish() override {}
  Counts counts() const override { return {to_device_, to_host_}; }

 private:
  LinkSpeeds speeds_;
  std::atomic<Bytes> to_device_{0}, to_host_{0};
};

// Makes the copy engine of a GPU: asynchronous copies on the current CUDA stream. Host memory that
// is not registered is copied through the driver's buffers, more slowly. ConfigError without CUDA.
std::unique_ptr<CopyEngine> make_cuda_copy_engine(int device);

}  // namespace longshore
