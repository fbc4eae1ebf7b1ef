#include "comm/ranks/rendezvous.h"

#include <algorithm>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "comm/ranks/process_identity.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the key prefix of this start: "longshore/job/0/". The launcher's run id may have any
// length, so it is cut.
std::string keys_of(const RankInfo& ranks) {
  return "longshore/" + ranks.run_id.substr(0, 200) + "/" + std::to_string(ranks.restart) + "/";
}

// Ranks of one node must agree on the number of ranks there and have distinct local ranks.
void check_places(const std::vector<ProcessIdentity>& identities) {
  std::map<std::pair<std::string, int32_t>, int32_t> first_of_node;
  std::map<std::tuple<std::string, int32_t, int32_t>, int32_t> at_place;
  for (int32_t rank = 0; rank < static_cast<int32_t>(identities.size()); ++rank) {
    const ProcessIdentity& own = identities[static_cast<size_t>(rank)];
    if (own.local_size == 0) continue;  // the launcher gave none
    const auto [first, alone] = first_of_node.try_emplace({own.host, own.node}, rank);
    const ProcessIdentity& other = identities[static_cast<size_t>(first->second)];
    if (!alone && other.local_size != own.local_size) {
      throw ConfigError(rank_text(rank, own) + " was started as one of " +
                        std::to_string(own.local_size) + " ranks on node " +
                        std::to_string(own.node) + ", " + rank_text(first->second, other) +
                        " as one of " + std::to_string(other.local_size) +
                        "; start all with the same LOCAL_WORLD_SIZE");
    }
    const auto [holder, free] = at_place.try_emplace({own.host, own.node, own.local_rank}, rank);
    if (!free) {
      throw ConfigError(rank_text(rank, own) + " and " +
                        rank_text(holder->second, identities[static_cast<size_t>(holder->second)]) +
                        " were both started as local rank " + std::to_string(own.local_rank) +
                        " of node " + std::to_string(own.node) + "; give each another LOCAL_RANK");
    }
  }
}

// Runs the exchange of one start through the store's keys.
class Greeter {
 public:
  Greeter(StoreConnection& store, const RankInfo& ranks, const ProcessIdentity& identity,
          std::chrono::milliseconds timeout)
      : store_(store),
        ranks_(ranks),
        identity_(identity),
        timeout_(timeout),
        end_(Clock::now() + timeout),
        prefix_(keys_of(ranks)) {}

  Meeting meet() {
    compare_sizes();
    claim();
    // The first heartbeat comes before the identity, so that every present rank has one.
    store_.set(prefix_ + "heartbeat/" + std::to_string(ranks_.rank), RankHeartbeat{}.to_json());
    store_.set(identity_key(ranks_.rank), identity_.to_json());
    for (std::vector<int32_t> missing = missing_ranks(); !missing.empty();
         missing = missing_ranks()) {
      pause("ranks " + joined(missing, ", ") + " of " + std::to_string(ranks_.size));
    }
    Meeting meeting{prefix_, identities()};
    check_places(meeting.identities);
    return meeting;
  }

 private:
  std::string identity_key(int32_t rank) const {
    return prefix_ + "identity/" + std::to_string(rank);
  }
  std::string refusal_key() const { return prefix_ + "refusal"; }

  // The first rank publishes the number of ranks. A rank that was started with another number tells
  // all ranks why the start fails.
  void compare_sizes() {
    const std::string mine =
        std::to_string(ranks_.size) + " ranks, " + rank_text(ranks_.rank, identity_);
    const std::string first = store_.set_once(prefix_ + "size", mine);
    if (first.substr(0, first.find(' ')) == std::to_string(ranks_.size)) return;
    const std::string text =
        rank_text(ranks_.rank, identity_) + " was started as one of " +
        std::to_string(ranks_.size) + " ranks, another as one of " + printable(first, 400) +
        "; start all ranks with the same WORLD_SIZE (number of tasks), and no two runs at one "
        "address";
    store_.set_once(refusal_key(), text);
    throw ConfigError(text);
  }

  void claim() {
    const std::string holder =
        store_.set_once(prefix_ + "claim/" + std::to_string(ranks_.rank), identity_.to_json());
    const ProcessIdentity found = ProcessIdentity::from_json(holder);
    if (found.token == identity_.token) return;
    throw ConfigError("rank " + std::to_string(ranks_.rank) + " of the run at " +
                      ranks_.store_host + ":" + std::to_string(ranks_.store_port) +
                      " is taken by " + found.text() + ", so this process (" + identity_.text() +
                      ") cannot be it; start each rank once");
  }

  std::vector<ProcessIdentity> identities() {
    std::vector<std::string> keys;
    for (int32_t rank = 0; rank < ranks_.size; ++rank) keys.push_back(identity_key(rank));
    std::vector<ProcessIdentity> found;
    for (const std::string& text : store_.get(keys)) {
      found.push_back(ProcessIdentity::from_json(text));
    }
    if (found.size() != keys.size()) throw StoreError("identities are missing");
    return found;
  }

  std::vector<int32_t> missing_ranks() {
    std::vector<int32_t> missing;
    for (int32_t rank = 0; rank < ranks_.size; ++rank) {
      if (!store_.has({identity_key(rank)})) missing.push_back(rank);
    }
    return missing;
  }

  void pause(const std::string& missing) {
    if (store_.has({refusal_key()})) {
      throw ConfigError(printable(store_.get({refusal_key()}).at(0), 2000));
    }
    if (Clock::now() > end_) {
      throw CommError(missing + " did not connect to the store at " + ranks_.store_host + ":" +
                      std::to_string(ranks_.store_port) + " within dist.timeout, " +
                      std::to_string(timeout_.count() / 1000) + " s");
    }
    std::this_thread::sleep_for(wait_);
    wait_ = std::min(wait_ * 2, std::chrono::milliseconds(100));
  }

  StoreConnection& store_;
  const RankInfo& ranks_;
  const ProcessIdentity& identity_;
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
  std::string prefix_;
  std::chrono::milliseconds wait_{2};
};

}  // namespace

std::string store_address_key(const RankInfo& ranks) {
  return keys_of(ranks) + "store";
}

Meeting meet_all_ranks(StoreConnection& store, const RankInfo& ranks,
                       const ProcessIdentity& identity, std::chrono::milliseconds timeout) {
  return Greeter(store, ranks, identity, timeout).meet();
}

std::string address_for_others(const std::vector<ProcessIdentity>& identities, int32_t rank) {
  const std::string& own = identities[static_cast<size_t>(rank)].address;
  if (!is_loopback(own)) return own;
  for (const ProcessIdentity& other : identities) {
    if (!is_loopback(other.address)) return other.store_address;
  }
  return own;
}

void count_nodes(const std::vector<ProcessIdentity>& identities, RankInfo& ranks) {
  if (ranks.local_size > 0 && ranks.nodes > 0) return;
  std::vector<std::string> hosts;
  ranks.local_rank = 0;
  ranks.local_size = 0;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    const std::string& host = identities[rank].host;
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    if (host != identities[static_cast<size_t>(ranks.rank)].host) continue;
    if (static_cast<int32_t>(rank) < ranks.rank) ++ranks.local_rank;
    ++ranks.local_size;
  }
  const auto own =
      std::find(hosts.begin(), hosts.end(), identities[static_cast<size_t>(ranks.rank)].host);
  ranks.node = static_cast<int32_t>(own - hosts.begin());
  ranks.nodes = static_cast<int32_t>(hosts.size());
}

}  // namespace longshore
