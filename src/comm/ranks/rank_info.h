// RankInfo: which process of the run this one is, as its launcher says. Plain value, made once at
// start.
//
//   torchrun          RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
//                     MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*
//   longshore launch  the same, LONGSHORE_LAUNCH, and LONGSHORE_SECRET, the secret of the run
//   srun              SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, ...
//   mpirun            OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE
//
// The store is at MASTER_ADDR:MASTER_PORT; srun's ranks find it on the first host of
// SLURM_NODELIST, and ranks of mpirun that are all on one node at 127.0.0.1, where these are unset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace longshore {

struct RankInfo {
  int32_t rank = 0;
  int32_t size = 1;
  // World::connect fills these four in where the launcher does not say (local_size is 0 then).
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t node = 0;
  int32_t nodes = 1;
  std::string launcher = "none";  // none, torchrun, srun, mpirun, launch
  std::string store_host;
  uint16_t store_port = 0;
  bool agent_store = false;  // `longshore launch` serves the store; else rank 0 does
  // torchrun's agent serves LibTorch's own store at that address, where rank 0 says where the run's
  // is. World::connect replaces the address by the run's.
  bool torch_agent = false;
  std::string secret;   // that the ranks prove to the store; empty: they have none
  int32_t restart = 0;  // how often the launcher has started the ranks again
  std::string run_id;

  // "rank 1 of 4 (1 of 2 on node 0 of 2), found by torchrun; store at 10.0.0.1:29500"
  std::string text() const;
};

// The GPU of a rank among the `visible` ones of its process: its own where a launcher lets each
// rank see one alone, else the one of its place on the machine.
int gpu_of(const RankInfo& ranks, size_t visible);

// The launchers' variables that are set in this process.
std::map<std::string, std::string> launcher_variables();

// No variables: one rank. ConfigError names every variable that is wrong or missing.
RankInfo discover_ranks(const std::map<std::string, std::string>& variables);
RankInfo discover_ranks();

}  // namespace longshore
