// The ranks of a run find each other through the store. Blocking functions; all end
// within the time-out.
//
// [Note: one start] A store serves one start of the ranks. The first process that claims a rank
// gets it; a second one is refused with an error that names the first. Ranks that torchrun restarts
// use a new store of their new rank 0.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/ranks/process_identity.h"
#include "comm/ranks/rank_info.h"
#include "comm/store/store.h"

namespace longshore {

struct Meeting {
  std::string prefix;                       // prefix of this start's keys
  std::vector<ProcessIdentity> identities;  // by rank
};

// Returns the key under which torchrun's agent stores the address of this start's store.
std::string store_address_key(const RankInfo& ranks);

// CommError names the missing ranks. ConfigError, on all ranks, names ranks that were started with
// different sizes or the same local rank on a node; on one rank, the process that already has its
// rank.
Meeting meet_all_ranks(StoreConnection& store, const RankInfo& ranks,
                       const ProcessIdentity& identity, std::chrono::milliseconds timeout);

// Returns the address by which other hosts reach this rank. A rank that reached the store by
// loopback gets the store's address as resolved by a rank on another host.
std::string address_for_others(const std::vector<ProcessIdentity>& identities, int32_t rank);

// Fills in node values that the launcher did not give by numbering the ranks on each host.
void count_nodes(const std::vector<ProcessIdentity>& identities, RankInfo& ranks);

}  // namespace longshore
