// SoloWorld: the World of one rank, without sockets, threads or waits. Owned by the run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/solo_communicator.h"
#include "comm/world/world.h"

namespace longshore {

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
