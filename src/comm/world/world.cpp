#include "comm/world/world.h"

#include <string_view>

#include "base/errors.h"
#include "comm/world/distributed_world.h"

namespace longshore {
namespace {

// Removes and returns the next line without its end; empty after the last one.
std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return line;
}

std::string describe_difference(std::string_view first, std::string_view other) {
  for (int64_t number = 1; !first.empty() || !other.empty(); ++number) {
    const std::string_view of_first = take_line(first);
    const std::string_view of_other = take_line(other);
    if (of_first == of_other) continue;
    return "line " + std::to_string(number) + " is \"" + std::string(of_other) + "\" there and \"" +
           std::string(of_first) + "\" on rank 0";
  }
  return "they end differently";
}

}  // namespace

std::unique_ptr<World> World::connect(const RankInfo& ranks, const WorldOptions& options) {
  if (ranks.size == 1) return std::make_unique<SoloWorld>(ranks);
  return std::make_unique<DistributedWorld>(ranks, options);
}

void World::agree(const std::string& what, const std::string& text) {
  const std::vector<std::string> texts = exchange(what, text);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError("rank " + std::to_string(rank) + " differs from rank 0 in " + what + ": " +
                      describe_difference(texts[0], texts[rank]) +
                      "; start all ranks with the same files and arguments");
  }
}

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
