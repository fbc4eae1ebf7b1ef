#include "comm/ranks/launcher.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "comm/ranks/rank_info.h"
#include "tests/comm/rank_process.h"

namespace longshore {
namespace {

LaunchOptions three_ranks(const std::string& behaviour) {
  LaunchOptions options;
  options.ranks = 3;
  options.command = {kLaunchedMode, behaviour};
  return options;
}

// Goal: launched ranks find each other by the launcher's variables, and all end with code 0.
TEST(Launcher, StartsRanksThatMeet) {
  EXPECT_EQ(launch_ranks(three_ranks("once")), 0);
}

// Goal: the launcher returns the exit code of the first rank that failed.
TEST(Launcher, GivesTheFirstFailure) {
  EXPECT_EQ(launch_ranks(three_ranks("die")), 128 + 9);
  EXPECT_EQ(launch_ranks(three_ranks("fail-1")), 5);
}

// Returns the processes of ranks that started and have not met, which write their numbers there.
std::vector<pid_t> unmet_ranks(const std::string& directory, int32_t ranks) {
  std::vector<pid_t> processes;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::string path = directory + "/" + std::to_string(rank);
    for (int look = 0; look < 3000 && !std::filesystem::exists(path); ++look) ::usleep(10'000);
    processes.push_back(std::stoi(read_whole_file(path, kKiB)));
  }
  return processes;
}

// Goal: ranks end with a launcher that is killed, also before they have reached its store.
TEST(Launcher, TakesItsRanksAlongWhenItIsKilled) {
  // Orphans become children of this process, so that their ends can be waited for.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  std::string directory = (std::filesystem::temp_directory_path() / "longshore-XXXXXX").string();
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  LaunchOptions options = three_ranks(kUnmet);
  options.command.push_back(directory);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    launch_ranks(options);
    ::_exit(0);
  }
  const std::vector<pid_t> ranks = unmet_ranks(directory, options.ranks);
  ::kill(launcher, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(launcher, &status, 0), launcher);
  for (const pid_t rank : ranks) {
    ASSERT_EQ(::waitpid(rank, &status, 0), rank);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  remove_tree(directory);
}

// Goal: each rank sees one GPU, in the order that the user gave. If GPUs are missing, none is
// hidden, so that the ranks can report it.
TEST(Launcher, GivesEachRankAGpu) {
  const auto none = std::nullopt;
  EXPECT_EQ(visible_gpu(none, 8, 2, 1), "1");
  EXPECT_EQ(visible_gpu(none, 8, 1, 0), "0");
  EXPECT_EQ(visible_gpu("5,2,7", 3, 2, 0), "5");
  EXPECT_EQ(visible_gpu("5,2,7", 3, 2, 1), "2");
  EXPECT_EQ(visible_gpu("3", 1, 1, 0), "3");
  EXPECT_EQ(visible_gpu("GPU-1f2e,MIG-77", 2, 2, 1), "MIG-77");
  EXPECT_EQ(visible_gpu(none, 0, 2, 1), none);
  EXPECT_EQ(visible_gpu(none, 1, 2, 0), none);
  EXPECT_EQ(visible_gpu("", 0, 1, 0), none);
  EXPECT_EQ(visible_gpu("5,2", 1, 2, 1), none) << "CUDA stopped at a GPU that is not there";
}

// Goal: a rank finds its GPU whether it sees all GPUs of the machine or its own only.
TEST(Launcher, RanksFindTheirGpu) {
  RankInfo ranks;
  ranks.local_rank = 2;
  EXPECT_EQ(gpu_of(ranks, 8), 2);
  EXPECT_EQ(gpu_of(ranks, 1), 0);
  EXPECT_EQ(gpu_of(ranks, 0), 2);
}

// Goal: a container's small /dev/shm is named before NCCL ends with "unhandled system error".
TEST(Launcher, NamesSharedMemoryThatIsTooSmallForNccl) {
  EXPECT_EQ(lack_of_shared_memory(64 * kMiB, 1), "");
  EXPECT_EQ(lack_of_shared_memory(80 * kMiB, 2), "");
  const std::string lack = lack_of_shared_memory(64 * kMiB, 8);
  EXPECT_NE(lack.find("64.0 MiB free"), std::string::npos) << lack;
  EXPECT_NE(lack.find("320.0 MiB"), std::string::npos) << lack;
  EXPECT_GT(free_shared_memory("/"), 0);
  EXPECT_EQ(free_shared_memory("/nowhere"), 0);
}

// Goal: launch options that contradict each other are refused.
TEST(Launcher, RefusesWrongOptions) {
  LaunchOptions options = three_ranks("once");
  options.nodes = 2;
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options.rendezvous = "host";
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options.rendezvous = "host:70000";
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options.nodes = 1;
  options.node = 1;
  EXPECT_THROW(launch_ranks(options), ConfigError);
  options = three_ranks("once");
  options.command.clear();
  EXPECT_THROW(launch_ranks(options), ConfigError);
}

}  // namespace
}  // namespace longshore
