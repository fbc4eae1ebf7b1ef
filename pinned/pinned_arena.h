// PinnedArena: memory of the host tier: one mapping of exactly the planned size. Its constructor
// touches every page and registers it with the GPUs if asked to. Owned by the tier that fills it.
// Its pages are spread over the NUMA nodes that have memory.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "device/cuda_runtime.h"
#include "device/host_mapping.h"
#include "pinned/worker_pool.h"

namespace longshore {

class PinnedArena {
 public:
  // The memory is zero-filled. The constructor uses `pool` to touch the pages and does not keep it.
  // Throws OutOfMemoryError if the system refuses the memory. If `register_with_gpus` is set and a
  // GPU refuses it, the arena is not registered, and the log says so. With `shared`, other
  // processes can map the memory too.
  PinnedArena(Bytes bytes, bool register_with_gpus, WorkerPool& pool, bool shared = false);

  std::span<std::byte> bytes() const { return mapping_.bytes(); }
  Bytes size_bytes() const { return mapping_.size_bytes(); }
  const HostMapping& mapping() const { return mapping_; }
  // Bytes that the kernel had backed with huge pages when the arena was touched.
  Bytes huge_page_bytes() const { return huge_page_bytes_; }
  // True if GPUs copy from and to the arena at full speed.
  bool registered() const { return registration_.registered(); }

 private:
  HostMapping mapping_;
  HostRegistration registration_;  // declared after mapping_: unregistered before it is unmapped
  Bytes huge_page_bytes_ = 0;
};

// A trial asks GPUs for at most this much: more than the limits that were seen under WSL2, and
// quick.
inline constexpr Bytes kPinTrialBytes = 2 * kGiB;
// Returns how many bytes of host memory the GPUs register if they refuse a trial: half of it, or
// half of that, down to 1 MiB; 0 if they refuse even that. nullopt if they take the trial, or there
// is no GPU. The trial takes at most a quarter of the `available` memory and releases it again.
// Makes a CUDA context.
std::optional<Bytes> find_pin_limit(Bytes available);

// The NUMA nodes of the machine that have memory, read from /sys. Pure functions; any thread.

// Returns the ids of the nodes with memory, ascending, from the files below `root` ("/" except in
// tests). Returns {0} if the kernel lists none.
std::vector<int> read_numa_nodes(const std::filesystem::path& root);

// Parses an id list such as "0-2,5"; returns an empty list for any other text.
std::vector<int> parse_id_list(std::string_view text);

}  // namespace longshore
