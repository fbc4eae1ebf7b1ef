// World: all ranks of the run. Made by every rank at start, owned by the run; one thread calls it
// and the communicators that it makes. Communicators must not outlive it.
//
// With more than one rank it has a watchdog: threads that tell the others that this rank is alive
// and what it is doing, and that learn when another rank died, hangs, disagrees or failed. Every
// wait then ends with a CommError that names the culprit; a thread that does not come back to a
// wait within `grace` of that is ended with the process (exit code 8).
// One rank: no sockets, no threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/comm_backend.h"
#include "comm/operations/communicator.h"
#include "comm/ranks/rank_info.h"
#include "device/device_kind.h"

namespace longshore {

struct WorldOptions {
  // Of every wait for another rank: longer than the longest time between two operations.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  CommBackend backend = CommBackend::kAuto;
  DeviceKind device = DeviceKind::kCpu;  // whose memory the buffers of group() are
  size_t visible_gpus = 0;               // that this process sees; 0: not known
  std::chrono::milliseconds heartbeat = std::chrono::milliseconds(500);
  // From learning of a failure to the end of a process whose threads do not react.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  // Called by the watchdog's thread just before it ends the process, with the message. May not
  // wait for anything that the engine's thread holds.
  std::function<void(const std::string&)> before_exit = {};
};

class World {
 public:
  // ConfigError for a store that cannot be had, CommError for ranks that do not come in time.
  static std::unique_ptr<World> connect(const RankInfo& ranks, const WorldOptions& options);

  virtual ~World() = default;

  virtual const RankInfo& ranks() const = 0;
  // For the host's memory, whatever the device: scalars, votes.
  virtual Communicator& all() = 0;
  // A group of its own of these ranks, given in the order of the group; equal on all members.
  // Every rank calls group() for its own, in the same order of names.
  virtual std::unique_ptr<Communicator> group(const std::string& name,
                                              const std::vector<int32_t>& members) = 0;
  // A group for the host's memory, which NCCL does not take; called as group() is.
  virtual std::unique_ptr<Communicator> host_group(const std::string& name,
                                                   const std::vector<int32_t>& members) = 0;

  // The texts of all ranks, by rank. `what` is named in errors.
  virtual std::vector<std::string> exchange(const std::string& what, const std::string& mine) = 0;
  // All ranks must give the same text. Else ConfigError, on all ranks, which names the first rank
  // that differs from rank 0 and the first line that differs, in both versions.
  void agree(const std::string& what, const std::string& text);

  // Tells the others why this rank ends. Returns within two seconds or so and never throws.
  virtual void report_failure(const std::string& message) noexcept = 0;
  // Throws the CommError of a failure that is known by now; for long work without operations.
  virtual void check() = 0;
};

}  // namespace longshore
