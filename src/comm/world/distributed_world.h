// DistributedWorld: the world of several ranks: the store, the watchdog, and the groups'
// transports. As World.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "comm/ranks/rendezvous.h"
#include "comm/store/serial_queue.h"
#include "comm/store/store_server.h"
#include "comm/watchdog/watchdog.h"
#include "comm/world/world.h"

namespace longshore {

class DistributedWorld : public World {
 public:
  DistributedWorld(const RankInfo& ranks, WorldOptions options);
  // Tells the others that this rank is done, or that it ends because of an exception; the rank that
  // serves the store waits for the others first.
  ~DistributedWorld() override;

  const RankInfo& ranks() const override { return ranks_; }
  Communicator& all() override { return *all_; }
  std::unique_ptr<Communicator> group(const std::string& name,
                                      const std::vector<int32_t>& members) override;
  std::unique_ptr<Communicator> host_group(const std::string& name,
                                           const std::vector<int32_t>& members) override;
  std::vector<std::string> exchange(const std::string& what, const std::string& mine) override;
  void report_failure(const std::string& message) noexcept override;
  void check() override;

 private:
  // What the store's thread uses; left to it where it hangs.
  struct Shared {
    StoreAddress address;  // of the run's store
    std::unique_ptr<StoreConnection> store;
    Meeting meeting;
    std::vector<std::string> texts;
  };

  void serve_store(const ProcessIdentity& identity);
  void meet(const ProcessIdentity& identity);
  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           const std::vector<int32_t>& members, bool nccl);
  // What the group's first member gave.
  std::string text_of_first(const std::string& prefix, const std::vector<int32_t>& members,
                            const std::string& mine);
  // Waits for a task of the store's thread, which ends by itself within the time-out.
  void wait(SerialQueue::Task& task, const std::string& what);

  RankInfo ranks_;
  const WorldOptions options_;
  StoreAddress address_;  // of the run's store; of torchrun's agent's until they have met
  const int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  SerialQueue store_queue_;
  std::shared_ptr<Watchdog> watchdog_;
  std::unique_ptr<Communicator> all_;
  std::string host_address_;
  int64_t exchanges_ = 0;
  int64_t groups_ = 0;
};

}  // namespace longshore
