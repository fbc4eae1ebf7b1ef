// DistributedWorld: the World of several ranks. It owns the store connection, the watchdog and, on
// the rank that serves it, the store. Ownership and threads as for World.
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
  // Reports that this rank is done, or that an exception ends it. The rank that serves the store
  // first waits for the other ranks.
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
  // The data of the store queue's thread. A hung thread keeps it alive.
  struct Shared {
    StoreAddress address;  // address of the run's store
    std::unique_ptr<StoreConnection> store;
    Meeting meeting;
    std::vector<std::string> texts;
  };

  void serve_store(const ProcessIdentity& identity);
  void meet(const ProcessIdentity& identity);
  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           const std::vector<int32_t>& members, bool nccl);
  // Returns the text of the group's first member.
  std::string text_of_first(const std::string& prefix, const std::vector<int32_t>& members,
                            const std::string& mine);
  // Waits for a task of the store queue, which ends by itself within the time-out.
  void wait(SerialQueue::Task& task, const std::string& what);

  RankInfo ranks_;
  const WorldOptions options_;
  StoreAddress address_;  // of torchrun's agent until the ranks have met, then of the run's store
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
