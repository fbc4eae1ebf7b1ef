// Rendezvous: how the ranks of a run find each other in the store. Blocking function, for a thread
// that may wait; everything is over within the time-out.
//
// [Note: incarnation] A launcher's store outlives its ranks: it may hold what ranks of an earlier
// start wrote. So every rank greets with a random number of its own, and rank 0 answers each
// greeting with the number of this start, under which all later keys stand.
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

// CommError names the ranks that did not come.
Meeting meet_all_ranks(StoreConnection& store, const RankInfo& ranks,
                       const ProcessIdentity& identity, std::chrono::milliseconds timeout);

// Of ranks that reached the store by loopback although others are elsewhere: the address by which
// those others reached it.
std::string address_for_others(const std::vector<ProcessIdentity>& identities, int32_t rank);

// Fills in what the launcher did not say about nodes: ranks are numbered on each host.
void count_nodes(const std::vector<ProcessIdentity>& identities, RankInfo& ranks);

}  // namespace longshore
