// Only this file reads the launchers' variables. Each call spells out its name, so that
// tests/tidy/tidy_test.cpp can list them.
#include <cstdlib>

#include "comm/ranks/rank_info.h"

namespace longshore {
namespace {

struct Variable {
  const char* name;
  const char* value;
};

}  // namespace

std::map<std::string, std::string> launcher_variables() {
  const Variable variables[] = {
      {"RANK", std::getenv("RANK")},
      {"WORLD_SIZE", std::getenv("WORLD_SIZE")},
      {"LOCAL_RANK", std::getenv("LOCAL_RANK")},
      {"LOCAL_WORLD_SIZE", std::getenv("LOCAL_WORLD_SIZE")},
      {"GROUP_RANK", std::getenv("GROUP_RANK")},
      {"GROUP_WORLD_SIZE", std::getenv("GROUP_WORLD_SIZE")},
      {"MASTER_ADDR", std::getenv("MASTER_ADDR")},
      {"MASTER_PORT", std::getenv("MASTER_PORT")},
      {"TORCHELASTIC_USE_AGENT_STORE", std::getenv("TORCHELASTIC_USE_AGENT_STORE")},
      {"TORCHELASTIC_RESTART_COUNT", std::getenv("TORCHELASTIC_RESTART_COUNT")},
      {"TORCHELASTIC_RUN_ID", std::getenv("TORCHELASTIC_RUN_ID")},
      {"LONGSHORE_LAUNCH", std::getenv("LONGSHORE_LAUNCH")},
      {"LONGSHORE_SECRET", std::getenv("LONGSHORE_SECRET")},
      {"SLURM_PROCID", std::getenv("SLURM_PROCID")},
      {"SLURM_NTASKS", std::getenv("SLURM_NTASKS")},
      {"SLURM_LOCALID", std::getenv("SLURM_LOCALID")},
      {"SLURM_NODEID", std::getenv("SLURM_NODEID")},
      {"SLURM_NNODES", std::getenv("SLURM_NNODES")},
      {"SLURM_JOB_ID", std::getenv("SLURM_JOB_ID")},
      {"SLURM_STEP_ID", std::getenv("SLURM_STEP_ID")},
      {"SLURM_STEP_NODELIST", std::getenv("SLURM_STEP_NODELIST")},
      {"SLURM_NODELIST", std::getenv("SLURM_NODELIST")},
      {"SLURM_JOB_NODELIST", std::getenv("SLURM_JOB_NODELIST")},
      {"SLURM_RESTART_COUNT", std::getenv("SLURM_RESTART_COUNT")},
      {"OMPI_COMM_WORLD_RANK", std::getenv("OMPI_COMM_WORLD_RANK")},
      {"OMPI_COMM_WORLD_SIZE", std::getenv("OMPI_COMM_WORLD_SIZE")},
      {"OMPI_COMM_WORLD_LOCAL_RANK", std::getenv("OMPI_COMM_WORLD_LOCAL_RANK")},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE")},
      {"PMI_RANK", std::getenv("PMI_RANK")},
      {"PMI_SIZE", std::getenv("PMI_SIZE")},
      {"PMI_LOCAL_RANK", std::getenv("PMI_LOCAL_RANK")},
      {"PMI_LOCAL_SIZE", std::getenv("PMI_LOCAL_SIZE")},
  };
  std::map<std::string, std::string> found;
  for (const Variable& variable : variables) {
    if (variable.value != nullptr) found.emplace(variable.name, variable.value);
  }
  return found;
}

RankInfo discover_ranks() {
  return discover_ranks(launcher_variables());
}

}  // namespace longshore
