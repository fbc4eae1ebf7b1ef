// PinnedArena: the host tier's memory: one mapping of exactly the planned size, every page touched
// before the first step, registered with the GPUs where there are any. Owned by who fills it.
#pragma once

#include <span>

#include "base/bytes.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "pinned/worker_pool.h"

namespace longshore {

class PinnedArena {
 public:
  // Zero-filled. `pool` touches the pages and is not kept. Throws OutOfMemoryError when the system
  // refuses the memory, CudaError when `register_with_gpus` and a GPU refuses it.
  // `shared`: other processes may map it too.
  PinnedArena(Bytes bytes, bool register_with_gpus, WorkerPool& pool, bool shared = false);

  std::span<std::byte> bytes() const { return mapping_.bytes(); }
  Bytes size_bytes() const { return mapping_.size_bytes(); }
  const HostMapping& mapping() const { return mapping_; }
  // What the kernel backed with huge pages when the arena was touched.
  Bytes huge_page_bytes() const { return huge_page_bytes_; }
  // True when GPUs copy from and to it at full speed.
  bool registered() const { return registration_.registered(); }

 private:
  HostMapping mapping_;
  HostRegistration registration_;  // ends before the mapping does
  Bytes huge_page_bytes_ = 0;
};

}  // namespace longshore
