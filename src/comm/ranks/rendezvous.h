// Rendezvous: how the ranks of a run find each other in the store. Blocking functions, for a thread
// that may wait; everything is over within the time-out.
//
// [Note: one start] A store serves one start of the ranks: each rank is claimed once, by the first
// process that comes as it, and whoever comes as the same one again is refused by the name of the
// first. Ranks that torchrun starts again get another store from their new rank 0.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/ranks/process_identity.h"
#include "comm/ranks/rank_info.h"
#include "comm/store/store.h"

namespace longshore {

struct Meeting {
  std::string prefix;                       // of this start's keys
  std::vector<ProcessIdentity> identities;  // by rank
};

// The key under which torchrun's agent is told where this start's store is.
std::string store_address_key(const RankInfo& ranks);

// CommError names the ranks that did not come. ConfigError, on all ranks, names those that were
// started with different sizes or with the same place on a node; on one rank, the process that has
// its rank.
Meeting meet_all_ranks(StoreConnection& store, const RankInfo& ranks,
                       const ProcessIdentity& identity, std::chrono::milliseconds timeout);

// Of ranks that reached the store by loopback although others are elsewhere: the address by which
// those others reached it.
std::string address_for_others(const std::vector<ProcessIdentity>& identities, int32_t rank);

// Fills in what the launcher did not say about nodes: ranks are numbered on each host.
void count_nodes(const std::vector<ProcessIdentity>& identities, RankInfo& ranks);

}  // namespace longshore
