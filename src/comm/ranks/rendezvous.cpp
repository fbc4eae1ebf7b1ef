#include "comm/ranks/rendezvous.h"

#include <algorithm>
#include <thread>

#include "base/errors.h"
#include "base/hash.h"
#include "base/random_word.h"
#include "comm/ranks/rank_beat.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

// The keys of one start.
class Greeter {
 public:
  Greeter(StoreConnection& store, const RankInfo& ranks, std::chrono::milliseconds timeout)
      : store_(store),
        ranks_(ranks),
        timeout_(timeout),
        end_(Clock::now() + timeout),
        base_("longshore/" + ranks.run_id + "/" + std::to_string(ranks.restart) + "/") {}

  // As rank 0: answers greetings until everybody is there.
  std::string receive(const ProcessIdentity& identity) {
    const std::string prefix = base_ + hash_text(random_word()) + "/";
    announce(prefix, identity);
    for (;;) {
      const std::vector<int32_t> missing = missing_ranks(prefix);
      if (missing.empty()) return prefix;
      for (const int32_t rank : missing) answer(rank, prefix);
      pause("ranks " + list(missing) + " of " + std::to_string(ranks_.size));
    }
  }

  // As any other rank.
  std::string greet(const ProcessIdentity& identity) {
    const std::string greeting = hash_text(random_word());
    store_.set(greeting_key(ranks_.rank), greeting);
    const std::string answer = answer_key(ranks_.rank, greeting);
    while (!store_.has({answer})) pause("rank 0");
    const std::string prefix = store_.get({answer}).at(0);
    announce(prefix, identity);
    for (;;) {
      const std::vector<int32_t> missing = missing_ranks(prefix);
      if (missing.empty()) return prefix;
      pause("ranks " + list(missing) + " of " + std::to_string(ranks_.size));
    }
  }

  std::vector<ProcessIdentity> identities(const std::string& prefix) {
    std::vector<std::string> keys;
    for (int32_t rank = 0; rank < ranks_.size; ++rank) keys.push_back(identity_key(prefix, rank));
    std::vector<ProcessIdentity> found;
    for (const std::string& text : store_.get(keys)) {
      found.push_back(ProcessIdentity::from_json(text));
    }
    if (found.size() != keys.size()) throw StoreError("identities are missing");
    return found;
  }

 private:
  std::string greeting_key(int32_t rank) const { return base_ + "hello/" + std::to_string(rank); }
  std::string answer_key(int32_t rank, const std::string& greeting) const {
    return base_ + "welcome/" + std::to_string(rank) + "/" + greeting;
  }
  static std::string identity_key(const std::string& prefix, int32_t rank) {
    return prefix + "identity/" + std::to_string(rank);
  }

  // The first beat comes before the identity: who is there has one.
  void announce(const std::string& prefix, const ProcessIdentity& identity) {
    store_.set(prefix + "beat/" + std::to_string(ranks_.rank), RankBeat{}.to_json());
    store_.set(identity_key(prefix, ranks_.rank), identity.to_json());
  }

  void answer(int32_t rank, const std::string& prefix) {
    const std::string key = greeting_key(rank);
    if (!store_.has({key})) return;
    store_.set(answer_key(rank, store_.get({key}).at(0)), prefix);
  }

  std::vector<int32_t> missing_ranks(const std::string& prefix) {
    std::vector<int32_t> missing;
    for (int32_t rank = 0; rank < ranks_.size; ++rank) {
      if (!store_.has({identity_key(prefix, rank)})) missing.push_back(rank);
    }
    return missing;
  }

  static std::string list(const std::vector<int32_t>& ranks) {
    std::string text;
    for (const int32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
  }

  void pause(const std::string& missing) {
    if (Clock::now() > end_) {
      throw CommError(missing + " did not come to the store at " + ranks_.store_host + ":" +
                      std::to_string(ranks_.store_port) + " within dist.timeout, " +
                      std::to_string(timeout_.count() / 1000) + " s");
    }
    std::this_thread::sleep_for(wait_);
    wait_ = std::min(wait_ * 2, std::chrono::milliseconds(100));
  }

  StoreConnection& store_;
  const RankInfo& ranks_;
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
  std::string base_;
  std::chrono::milliseconds wait_{2};
};

}  // namespace

Meeting meet_all_ranks(StoreConnection& store, const RankInfo& ranks,
                       const ProcessIdentity& identity, std::chrono::milliseconds timeout) {
  Greeter greeter(store, ranks, timeout);
  Meeting meeting;
  meeting.prefix = ranks.rank == 0 ? greeter.receive(identity) : greeter.greet(identity);
  meeting.identities = greeter.identities(meeting.prefix);
  return meeting;
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
