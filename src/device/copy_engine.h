// CopyEngine: moves bytes between host and device memory and counts them. Owned by the engine; the
// lanes that copy call it, at the same time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/bytes.h"

namespace longshore {

class CopyEngine {
 public:
  // Bytes moved so far, by direction.
  struct Counts {
    Bytes to_device = 0;
    Bytes to_host = 0;
  };

  virtual ~CopyEngine() = default;
  // Both spans have the same length and do not overlap. The copy is part of the work that calls: on
  // the CPU device it is done on return, on a GPU when the current stream gets there.
  virtual void to_device(std::span<std::byte> device, std::span<const std::byte> host) = 0;
  virtual void to_host(std::span<std::byte> host, std::span<const std::byte> device) = 0;
  // Done when this thread's copies are: before what they read is given back.
  virtual void finish() = 0;
  virtual Counts counts() const = 0;
};

// Seconds that a copy takes at least: an emulated link.
struct LinkSpeeds {
  double to_device_bytes_per_second = 0.0;  // 0: as fast as memory
  double to_host_bytes_per_second = 0.0;
};

// The CPU device's: its memory is host memory.
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

// A GPU's: asynchronous copies on the current CUDA stream. Host memory that is not registered is
// copied through the driver's own buffers, more slowly. ConfigError without CUDA.
std::unique_ptr<CopyEngine> make_cuda_copy_engine(int device);

}  // namespace longshore
