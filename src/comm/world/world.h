// World: all ranks of the run. Every rank makes it at start; the run owns it. One thread calls it
// and the communicators that it makes. Communicators must not outlive it.
//
// With several ranks it has a watchdog, whose threads report this rank's progress and detect when
// another rank died, hangs, disagrees or failed. Every wait then ends with a CommError that names
// the culprit. If the world still exists `grace` later, the watchdog ends the process (exit code
// 8). A World of one rank is a SoloWorld, which has no sockets and no threads.
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
  // The limit of every wait for another rank; longer than the longest time between two operations.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  CommBackend backend = CommBackend::kAuto;
  DeviceKind device = DeviceKind::kCpu;  // device of the buffers of group()
  size_t visible_gpus = 0;               // GPUs that this process sees; 0: unknown
  std::chrono::milliseconds heartbeat = std::chrono::milliseconds(500);
  // The time from learning of a failure to the forced end of the process.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  // The watchdog's thread calls this with the message just before it ends the process. It must not
  // wait for anything that the engine's thread holds.
  std::function<void(const std::string&)> before_exit = {};
};

class World {
 public:
  // Throws ConfigError if the store is unavailable, CommError if ranks do not come in time.
  static std::unique_ptr<World> connect(const RankInfo& ranks, const WorldOptions& options);

  virtual ~World() = default;

  virtual const RankInfo& ranks() const = 0;
  // The group of all ranks, for host memory on every device: scalars, votes.
  virtual Communicator& all() = 0;
  // Makes a group of these ranks, listed in the group's order, equally on all members. Every rank
  // calls group() for its own group, in the same order of names.
  virtual std::unique_ptr<Communicator> group(const std::string& name,
                                              const std::vector<int32_t>& members) = 0;
  // Like group(), but for host memory, which NCCL does not accept.
  virtual std::unique_ptr<Communicator> host_group(const std::string& name,
                                                   const std::vector<int32_t>& members) = 0;

  // Returns the texts of all ranks, by rank. `what` names them in errors.
  virtual std::vector<std::string> exchange(const std::string& what, const std::string& mine) = 0;
  // Compares a text over all ranks. If it differs, all ranks throw a ConfigError that names the
  // first rank that differs from rank 0 and the first differing line in both versions.
  void agree(const std::string& what, const std::string& text);

  // Tells the other ranks why this rank ends. Returns within about two seconds and never throws.
  virtual void report_failure(const std::string& message) noexcept = 0;
  // Throws the CommError of an already known failure; for long work without operations.
  virtual void check() = 0;
};

// SoloWorld: the World of one rank, without sockets, threads or waits. Owned by the run.

class SoloWorld : public World {
 public:
  explicit SoloWorld(const RankInfo& ranks);

  const RankInfo& ranks() const override { return ranks_; }
  Communicator& all() override { return all_; }
  std::unique_ptr<Communicator> group(const std::string& name,
                                      const std::vector<int32_t>& members) override;
  std::unique_ptr<Communicator> host_group(const std::string& name,
                                           const std::vector<int32_t>& members) override {
    return group(name, members);
  }
  std::vector<std::string> exchange(const std::string& what, const std::string& mine) override;
  void report_failure(const std::string& message) noexcept override;
  void check() override {}

 private:
  RankInfo ranks_;
  SoloCommunicator all_;
};

}  // namespace longshore
