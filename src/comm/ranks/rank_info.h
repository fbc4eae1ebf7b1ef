// RankInfo: this process's rank, as its launcher's variables give it. Plain value, made once at
// start.
//
//   torchrun          RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
//                     MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*
//   longshore launch  the same, LONGSHORE_LAUNCH, and LONGSHORE_SECRET, the secret of the run
//   srun              SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, ...
//   mpirun            OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE
//
// The store is at MASTER_ADDR:MASTER_PORT. If these are unset, srun's ranks use the first host of
// SLURM_NODELIST, and mpirun's ranks on a single node use 127.0.0.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace longshore {

struct RankInfo {
  int32_t rank = 0;
  int32_t size = 1;
  // World::connect fills in these four if the launcher gives none (local_size is 0 then).
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t node = 0;
  int32_t nodes = 1;
  std::string launcher = "none";  // none, torchrun, srun, mpirun, launch
  std::string store_host;
  uint16_t store_port = 0;
  bool agent_store = false;  // `longshore launch` serves the store; otherwise rank 0 does
  // torchrun's agent serves LibTorch's store at that address. Rank 0 publishes the address of the
  // run's store there, and World::connect replaces the address by it.
  bool torch_agent = false;
  std::string secret;   // the shared secret of the ranks; empty: none
  int32_t restart = 0;  // number of restarts by the launcher
  std::string run_id;

  // Describes it: "rank 1 of 4 (1 of 2 on node 0 of 2), found by torchrun; store at
  // 10.0.0.1:29500".
  std::string text() const;
};

// Returns the index of the rank's GPU among the `visible` ones of its process: 0 if it sees only
// one, otherwise its local rank.
int gpu_of(const RankInfo& ranks, size_t visible);

// Returns the launchers' variables that are set in this process.
std::map<std::string, std::string> launcher_variables();

// Returns their names. A child process must not get them: it would take itself for this rank.
std::set<std::string, std::less<>> launcher_variable_names();

// Without variables the run has one rank. ConfigError names all bad variables.
RankInfo discover_ranks(const std::map<std::string, std::string>& variables);
RankInfo discover_ranks();

// Parsing of SLURM's compressed host lists. Pure function.

// Returns the first host of "node[003-005,007],other" ("node003"); "" for invalid text.
std::string first_slurm_host(std::string_view list);

}  // namespace longshore
