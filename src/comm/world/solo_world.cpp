#include "comm/world/solo_world.h"

#include "base/errors.h"

namespace longshore {

SoloWorld::SoloWorld(const RankInfo& ranks) : ranks_(ranks), all_("world") {
  LONGSHORE_CHECK(ranks.size == 1 && ranks.rank == 0) << ranks.text();
  ranks_.local_size = 1;
  ranks_.nodes = 1;
}

std::unique_ptr<Communicator> SoloWorld::group(const std::string& name,
                                               const std::vector<int32_t>& members) {
  LONGSHORE_CHECK(members == std::vector<int32_t>{0}) << "group " << name << " of one rank";
  return std::make_unique<SoloCommunicator>(name);
}

std::vector<std::string> SoloWorld::exchange(const std::string& /*what*/, const std::string& mine) {
  return {mine};
}

void SoloWorld::report_failure(const std::string& /*message*/) noexcept {}

}  // namespace longshore
