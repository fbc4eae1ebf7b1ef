// DeviceMemory: the device's hard byte cap, split into two parts. The run owns one per device; it
// outlives every buffer carved from it.
//   owned       one arena of exactly the plan's size, carved once into named buffers
//   workspace   LibTorch's temporaries, counted by a WorkspaceMeter against cap - owned
// It does not read or write the arena, which is host or GPU memory. One thread carves; any thread
// uses the meter.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"

namespace longshore {

// WorkspaceMeter: counts the bytes of a device's temporaries by label against a limit. The
// DeviceMemory that made it and every live allocation share it, so memory that is freed late is
// still counted. Any thread.

// A named holder and its bytes, for error texts.
struct BytesHeld {
  std::string name;
  Bytes bytes = 0;
};

// Describes the largest: "slot.0 16.0 MiB, slot.1 16.0 MiB, 3 more 1.0 MiB"; "none" if empty.
std::string describe_largest(std::vector<BytesHeld> held);

// The use of device memory by temporaries. An allocator that caches freed memory, such as a GPU's,
// holds more than its tensors use.
struct WorkspaceUse {
  Bytes held = 0, held_peak = 0;        // taken from the device; the limit applies to it
  Bytes tensors = 0, tensors_peak = 0;  // used by tensors, as the allocator rounds them
  int64_t retries = 0;                  // requests that succeeded after freeing cached memory
};

class WorkspaceMeter {
 public:
  // The bytes of one label; its address is stable while the meter lives.
  struct Account {
    std::string label;
    Bytes bytes = 0;
  };

  // An allocator, such as a GPU's, that counts its own use and enforces the limit itself.
  class Gauge {
   public:
    virtual ~Gauge() = default;
    virtual WorkspaceUse use() const = 0;
    virtual void reset_peak() = 0;
  };

  // `cap` is the device's whole cap, `owned` the bytes of its buffers; the limit is the difference.
  WorkspaceMeter(Bytes cap, Bytes owned);

  // Returns the label's account, made at first use.
  Account& account(std::string_view label);
  // Counts `bytes` for the account. Over the limit it throws OutOfMemoryError and counts nothing.
  void take(Account& account, Bytes bytes);
  void give_back(Account& account, Bytes bytes);

  // Makes use() report the gauge, which replaces take() and give_back().
  void follow(std::shared_ptr<Gauge> gauge);
  // Throws the same OutOfMemoryError as take(), for the gauge's allocator when it has no `bytes`
  // more for `label`.
  [[noreturn]] void refuse(const std::string& label, Bytes bytes) const;

  // Sets the buffers that error texts name.
  void set_owned(std::vector<BytesHeld> buffers);

  Bytes limit() const { return cap_ - owned_; }
  WorkspaceUse use() const;
  void reset_peak();
  // Returns the labels that hold bytes now, largest first.
  std::vector<BytesHeld> held() const;

 private:
  [[noreturn]] void throw_over(const std::string& label, Bytes bytes, Bytes current) const
      LONGSHORE_REQUIRES(mutex_);
  std::vector<BytesHeld> held_locked() const LONGSHORE_REQUIRES(mutex_);

  const Bytes cap_;
  const Bytes owned_;
  mutable Mutex mutex_;
  std::map<std::string, Account, std::less<>> accounts_ LONGSHORE_GUARDED_BY(mutex_);
  std::vector<BytesHeld> buffers_ LONGSHORE_GUARDED_BY(mutex_);
  Bytes current_ LONGSHORE_GUARDED_BY(mutex_) = 0;
  Bytes peak_ LONGSHORE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Gauge> gauge_ LONGSHORE_GUARDED_BY(mutex_);  // null: counted here
};

// DeviceArena: the memory behind a DeviceMemory's owned bytes: host memory on the CPU device, else
// GPU memory. Owned by the DeviceMemory that is carved from it. Any thread.

class DeviceArena {
 public:
  virtual ~DeviceArena() = default;
  // The bytes are zero-filled when made. Host code may access them on the CPU device only.
  virtual std::span<std::byte> bytes() const = 0;
};

// Records an arena's GPU bytes for the process while it lives, so that code can tell GPU memory
// from host memory before a GPU collective. The arena owns it.
class GpuBytes {
 public:
  GpuBytes() = default;  // records nothing
  explicit GpuBytes(std::span<const std::byte> bytes);
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  ~GpuBytes();

 private:
  const std::byte* begin_ = nullptr;
};
// Returns whether all of `bytes` are in one GPU arena; true for an empty span. Any thread.
bool in_gpu_arena(std::span<const std::byte> bytes);

// Makes host memory. Throws OutOfMemoryError if the system refuses.
std::unique_ptr<DeviceArena> make_host_arena(Bytes bytes);
// Makes plain memory of one GPU (cudaMalloc). Throws ConfigError without CUDA, OutOfMemoryError if
// the GPU refuses. Ranks that gather with NCCL use make_nccl_arena instead
// (comm/collectives/nccl_communicator.h).
std::unique_ptr<DeviceArena> make_cuda_arena(Bytes bytes, int device);

// The calls that allocate and free the bytes of an arena on a GPU, which is the current device
// during both. Plain value.
struct GpuAllocator {
  // Returns null if the GPU has too little memory, and then sets the reason.
  std::function<void*(size_t bytes, std::string& reason)> allocate;
  std::function<void(void*)> release;
};
// Makes memory of one GPU with these calls; only a build with CUDA has it. Throws ConfigError if
// there is no such GPU, OutOfMemoryError if the GPU refuses.
std::unique_ptr<DeviceArena> make_gpu_arena(Bytes bytes, int device, GpuAllocator allocator);

// Carved buffers start at multiples of this and are rounded up to it.
inline constexpr Bytes kDeviceBufferAlignment = 256;

// A named part of a DeviceMemory's arena, valid while the memory lives. It owns nothing.
struct DeviceBuffer {
  std::string name;
  std::span<std::byte> bytes;
};

class DeviceMemory {
 public:
  // Bytes of buffers and workspace now; peak() is their largest sum since reset_peak().
  struct Usage {
    Bytes owned = 0;
    WorkspaceUse workspace = {};
    Bytes peak() const { return owned + workspace.held_peak; }
  };

  // Uses host memory, for the CPU device. 0 <= owned <= cap; `owned` is a multiple of
  // kDeviceBufferAlignment.
  DeviceMemory(Bytes cap, Bytes owned);
  // Uses the arena, which is exactly the owned bytes.
  DeviceMemory(Bytes cap, std::unique_ptr<DeviceArena> arena);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  Bytes cap() const { return cap_; }
  Bytes owned() const { return static_cast<Bytes>(arena_->bytes().size()); }
  Bytes workspace_cap() const { return cap_ - owned(); }

  // Carves the next `bytes`, rounded up to the alignment, zero-filled. Names are unique. Throws
  // CheckFailure if the plan's owned bytes are exceeded.
  DeviceBuffer carve(const std::string& name, Bytes bytes);
  // Throws CheckFailure unless every owned byte has a buffer.
  void check_carved() const;
  const std::vector<DeviceBuffer>& buffers() const { return buffers_; }

  Usage usage() const;
  // Restarts the peak from the current use.
  void reset_peak();

  // Returns the meter of the workspace; it is shared because temporaries may outlive this object.
  const std::shared_ptr<WorkspaceMeter>& workspace() const { return workspace_; }

 private:
  Bytes cap_;
  std::unique_ptr<DeviceArena> arena_;
  Bytes carved_ = 0;
  std::vector<DeviceBuffer> buffers_;
  std::shared_ptr<WorkspaceMeter> workspace_;
};

}  // namespace longshore
