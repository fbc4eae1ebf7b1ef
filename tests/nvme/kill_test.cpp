// A real process is killed with SIGKILL at random moments with I/O in flight, and restarted at
// once: every acknowledged step is there and whole. The writer is this binary, running one disabled
// test.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <thread>

#include "nvme/store/nvme_store.h"
#include "nvme/store/state_file.h"
#include "tests/fakes/specs.h"
#include "tests/nvme/scratch_file.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

constexpr const char* kDirectoryFlag = "--state-directory=";
constexpr const char* kAtLeastFlag = "--at-least=";
constexpr int64_t kNothing = -1;

std::string argument(const std::string& flag) {
  for (const std::string& one : testing::internal::GetArgvs()) {
    if (one.starts_with(flag)) return one.substr(flag.size());
  }
  return {};
}

// Prints a line for one acknowledged step.
void acknowledge(int64_t step) {
  char line[32];
  const int bytes = std::snprintf(line, sizeof(line), "ack %lld\n", static_cast<long long>(step));
  if (write(STDOUT_FILENO, line, static_cast<size_t>(bytes)) != bytes) _exit(5);
}

// Resumes from the drives and runs forever; ends with a failure if a step is missing or wrong.
TEST(KilledWriter, DISABLED_Writes) {
  const std::string directory = argument(kDirectoryFlag);
  ASSERT_FALSE(directory.empty()) << "started by the tests below";
  const int64_t at_least = std::stoll(argument(kAtLeastFlag));
  WorkerPool pool(2);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(6, false), 1, DType::kBF16);
  StateFileOptions files;
  files.directories = {directory + "/a", directory + "/b"};
  files.engine = at_least % 2 == 0 ? IoEngine::kThreads : IoEngine::kAuto;
  const NvmeStoreOptions options = small_store({}, at_least % 3 == 0, 2);
  NvmeStore store(
      layouts, options,
      [&](const StripeMap& map, std::span<std::byte> window) {
        return open_state_files(files, map, window);
      },
      &pool);
  const auto& point = store.start(solo, static_cast<uint64_t>(getpid()) * 7919 + 1);
  const int64_t found = point ? point->step : kNothing;
  ASSERT_GE(found, at_least);
  ASSERT_LE(found, at_least + 1);
  if (point) {
    ASSERT_EQ(difference(store, layouts, found), "");
  }
  for (int64_t step = found + 1;; ++step) {
    write_step(store, layouts, step);
    store.commit({step, ""}, solo);
    acknowledge(step);
  }
}

struct Writer {
  pid_t pid = -1;
  int output = -1;
};

Writer start_writer(const std::string& directory, int64_t at_least) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const std::string state = kDirectoryFlag + directory;
  const std::string least = kAtLeastFlag + std::to_string(at_least);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execl("/proc/self/exe", "test_nvme", "--gtest_filter=KilledWriter.DISABLED_Writes",
          "--gtest_also_run_disabled_tests", state.c_str(), least.c_str(), nullptr);
    _exit(6);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

// Returns the last acknowledged step in the output; a cut line does not count.
int64_t last_acknowledged(const std::string& output, int64_t before) {
  int64_t last = before;
  size_t at = 0;
  while ((at = output.find("ack ", at)) != std::string::npos) {
    const size_t end = output.find('\n', at);
    if (end == std::string::npos) break;
    std::from_chars(output.data() + at + 4, output.data() + end, last);
    at = end;
  }
  return last;
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = read(descriptor, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(bytes));
  }
  return text;
}

// Starts the writer `kills` times, waits for its first acknowledgement and a random time more, and
// kills it; every third one is killed during recovery.
void kill_again_and_again(int kills, uint64_t seed) {
  const ScratchDirectory directory;
  SimRandom random(seed);
  int64_t acknowledged = kNothing;
  for (int i = 0; i < kills; ++i) {
    const Writer writer = start_writer(directory.path(), acknowledged);
    ASSERT_GT(writer.pid, 0);
    std::string output;
    if (i % 3 != 2) {
      char byte = 0;
      while (output.find("ack ") == std::string::npos && read(writer.output, &byte, 1) == 1) {
        output += byte;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(60'000)));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(random.below(600)));
    }
    kill(writer.pid, SIGKILL);
    output += read_all(writer.output);
    close(writer.output);
    int status = 0;
    waitpid(writer.pid, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "kill " << i << "\n"
                                                                    << output;
    acknowledged = last_acknowledged(output, acknowledged);
  }
  EXPECT_GE(acknowledged, kills / 2);
}

// Twenty kills lose no acknowledged step.
TEST(Killed, TwentyTimesLosesNoAcknowledgedStep) {
  kill_again_and_again(20, 1);
}

// Two hundred kills lose no acknowledged step.
TEST(LongKilled, TwoHundredTimesLosesNoAcknowledgedStep) {
  // Each run of scripts/dev/soak has another seed.
  kill_again_and_again(200, static_cast<uint64_t>(2 + GTEST_FLAG_GET(random_seed)));
}

}  // namespace
}  // namespace longshore
