#include "comm/ranks/rank_info.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/errors.h"

namespace longshore {
namespace {

using Variables = std::map<std::string, std::string>;

std::string problem_of(const Variables& variables) {
  try {
    discover_ranks(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Goal: without a launcher's variables there is one rank and no store.
TEST(RankInfo, NoVariablesAreOneRank) {
  const RankInfo info = discover_ranks(Variables{});
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.launcher, "none");
  EXPECT_EQ(info.text(), "rank 0 of 1 (0 of 1 on node 0 of 1), no launcher");
}

// Goal: torchrun's variables are read, with its agent's store and a restart.
TEST(RankInfo, ReadsTorchrun) {
  const RankInfo info = discover_ranks({{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"GROUP_RANK", "1"},
                                        {"GROUP_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "10.0.0.1"},
                                        {"MASTER_PORT", "29501"},
                                        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                        {"TORCHELASTIC_RESTART_COUNT", "2"},
                                        {"TORCHELASTIC_RUN_ID", "job"}});
  EXPECT_EQ(info.text(),
            "rank 5 of 8 (1 of 4 on node 1 of 2), found by torchrun; store at 10.0.0.1:29501, "
            "served by rank 0, found through torchrun's agent");
  EXPECT_EQ(info.restart, 2);
  EXPECT_EQ(info.run_id, "job");
}

// Goal: RANK and WORLD_SIZE set by hand suffice; rank 0 then serves the store.
TEST(RankInfo, ReadsVariablesSetByHand) {
  const RankInfo info = discover_ranks(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "5000"}});
  EXPECT_EQ(info.text(),
            "rank 1 of 2, found by torchrun; store at localhost:5000, served by rank 0");
}

// Goal: without a variable for the node it follows from the rank: nodes are filled one by one.
TEST(RankInfo, CountsNodesByTheRanksOfEach) {
  const RankInfo info = discover_ranks({{"RANK", "6"},
                                        {"WORLD_SIZE", "7"},
                                        {"LOCAL_RANK", "0"},
                                        {"LOCAL_WORLD_SIZE", "3"},
                                        {"MASTER_ADDR", "localhost"},
                                        {"MASTER_PORT", "5000"}});
  EXPECT_EQ(info.node, 2);
  EXPECT_EQ(info.nodes, 3);
}

// Goal: Longshore's own launcher is recognized, and always serves the store.
TEST(RankInfo, ReadsLongshoreLaunch) {
  const RankInfo info = discover_ranks({{"LONGSHORE_LAUNCH", "abc"},
                                        {"RANK", "0"},
                                        {"WORLD_SIZE", "2"},
                                        {"LOCAL_RANK", "0"},
                                        {"LOCAL_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "127.0.0.1"},
                                        {"MASTER_PORT", "5000"}});
  EXPECT_EQ(info.launcher, "launch");
  EXPECT_TRUE(info.agent_store);
  EXPECT_EQ(info.nodes, 1);
  EXPECT_EQ(info.run_id, "abc");
}

// Goal: srun's ranks find the store on the first host of their step.
TEST(RankInfo, ReadsSrun) {
  Variables variables = {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"},
                         {"SLURM_NNODES", "2"},  {"SLURM_NODELIST", "gpu[07-08]"},
                         {"SLURM_JOB_ID", "31"}, {"SLURM_STEP_ID", "0"}};
  const RankInfo info = discover_ranks(variables);
  EXPECT_EQ(info.launcher, "srun");
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.store_host, "gpu07");
  EXPECT_EQ(info.store_port, 15031);
  variables["MASTER_ADDR"] = "10.1.1.1";
  variables["MASTER_PORT"] = "777";
  EXPECT_EQ(discover_ranks(variables).store_host, "10.1.1.1");
  EXPECT_EQ(discover_ranks(variables).store_port, 777);
  // The batch script itself is not a task of a step.
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(discover_ranks(variables).size, 1);
}

// Goal: the variables of Open MPI and PMI are read; ranks of one node need no address.
TEST(RankInfo, ReadsMpirun) {
  const RankInfo info = discover_ranks({{"OMPI_COMM_WORLD_RANK", "1"},
                                        {"OMPI_COMM_WORLD_SIZE", "2"},
                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                        {"SLURM_PROCID", "0"}});
  EXPECT_EQ(info.text(),
            "rank 1 of 2 (1 of 2 on node 0 of 1), found by mpirun; store at 127.0.0.1:29500, "
            "served by rank 0");
  const RankInfo pmi =
      discover_ranks({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.9"}});
  EXPECT_EQ(pmi.rank, 1);
  EXPECT_EQ(pmi.store_host, "10.0.0.9");
  EXPECT_NE(problem_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).find("MASTER_ADDR"),
            std::string::npos);
}

// Goal: the error for a wrong or missing variable names the variable.
TEST(RankInfo, NamesWrongVariables) {
  const auto names = [](const Variables& variables, const std::string& name) {
    return problem_of(variables).find(name) != std::string::npos;
  };
  EXPECT_TRUE(names({{"RANK", "0"}}, "WORLD_SIZE is not set"));
  EXPECT_TRUE(names({{"WORLD_SIZE", "2"}}, "RANK is not set"));
  EXPECT_TRUE(names({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_PORT is not set"));
  EXPECT_TRUE(names({{"RANK", "x"}, {"WORLD_SIZE", "1"}}, "RANK is \"x\""));
  EXPECT_TRUE(names({{"RANK", "1"}, {"WORLD_SIZE", "1"}}, "rank 1 is not below"));
  EXPECT_TRUE(names({{"RANK", "-1"}, {"WORLD_SIZE", "1"}}, "RANK is \"-1\""));
  EXPECT_TRUE(
      names({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
            "MASTER_PORT is \"70000\""));
  EXPECT_TRUE(names({{"SLURM_PROCID", "0"}}, "SLURM_NTASKS is not set"));
  EXPECT_TRUE(names({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, "SLURM_NODELIST"));
  EXPECT_TRUE(names({{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK is not set"));
  EXPECT_TRUE(names({{"LONGSHORE_LAUNCH", "1"}}, "RANK is not set"));
}

// Goal: the first host is found in SLURM's node lists; malformed lists give none.
TEST(SlurmNodelist, FindsTheFirstHost) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("gpu[003-005,007]"), "gpu003");
  EXPECT_EQ(first_slurm_host("rack[1-2]n[05,07].site"), "rack1n05.site");
  EXPECT_EQ(first_slurm_host(""), "");
  EXPECT_EQ(first_slurm_host("node["), "");
  EXPECT_EQ(first_slurm_host("node[]"), "");
  EXPECT_EQ(first_slurm_host("no de"), "");
}

}  // namespace
}  // namespace longshore
