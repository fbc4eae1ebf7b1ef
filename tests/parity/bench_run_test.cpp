// `longshore bench run` through the command line, with tiny shapes on this machine: the rows of all
// recipes, refusals, what is written and what is left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"
#include "trainer/bench_run/bench_recipe.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Sets an environment variable while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class BenchRun : public testing::Test {
 protected:
  BenchRun()
      : directory_(scratch_directory("bench-run")),
        temporary_("TMPDIR", made("temporary")),
        cache_("XDG_CACHE_HOME", made("cache")) {}
  ~BenchRun() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string made(const std::string& name) const {
    fs::create_directories(path(name));
    return path(name);
  }
  // Runs the recipe in tiny shapes.
  static Ended run(const std::string& recipe, const Arguments& more = {}) {
    return run_command(joined({"bench", "run", recipe, "--tiny", "--steps", "5"}, more));
  }
  // Returns the row of a run that succeeds.
  Json row(const std::string& recipe, const Arguments& more = {}) const {
    const Ended ended = run(recipe, more);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(std::ranges::count(ended.out, '\n'), 1) << ended.out;
    EXPECT_TRUE(fs::is_empty(path("temporary"))) << "the run directory is removed";
    return Json::parse(ended.out);
  }
  std::string make_model(const std::string& preset) const {
    EXPECT_EQ(run_command({"init-model", "--preset", preset, path(preset)}).exit_code, 0);
    return path(preset);
  }
  static Bytes bytes_below(const std::string& directory) {
    Bytes bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) bytes += static_cast<Bytes>(entry.file_size());
    }
    return bytes;
  }

 private:
  std::string directory_;
  Variable temporary_, cache_;
};

// Expects that a row has all members, that the run took what its plan says, and that no bit of the
// block differs.
void expect_whole(const Json& row, const std::string& recipe) {
  SCOPED_TRACE(row.dump());
  EXPECT_EQ(row.at("row"), 1);
  EXPECT_EQ(row.at("recipe"), recipe);
  EXPECT_EQ(row.at("tiny"), true);
  EXPECT_EQ(row.at("steps"), 5);
  EXPECT_EQ(row.at("trained") == row.at("parameters"), recipe.ends_with("-full"));
  EXPECT_GT(row.at("tokens_per_second").at("measured").get<double>(), 0.0);
  const Json& seconds = row.at("step_seconds");
  EXPECT_LE(seconds.at("least"), seconds.at("measured"));
  EXPECT_LE(seconds.at("measured"), seconds.at("most"));
  const Json &device = row.at("bytes").at("device"), &host = row.at("bytes").at("host");
  EXPECT_GT(device.at("peak").get<Bytes>(), 0);
  EXPECT_LE(device.at("peak"), device.at("planned"));
  EXPECT_LE(device.at("planned"), device.at("cap"));
  EXPECT_EQ(host.at("arena"), host.at("planned_arena"));
  const Json& moved = row.at("moved");
  EXPECT_EQ(moved.at("h2d").at("measured"), moved.at("h2d").at("planned"));
  EXPECT_EQ(moved.at("file_read").at("measured"), moved.at("file_read").at("planned"));
  // The plan has the padding of gradients, which is not copied.
  const auto drained = moved.at("d2h").at("measured").get<double>();
  EXPECT_LE(drained, moved.at("d2h").at("planned").get<double>());
  EXPECT_GE(drained, 0.95 * moved.at("d2h").at("planned").get<double>());
  const Json& check = row.at("check");
  EXPECT_EQ(check.at("result"), "equal");
  EXPECT_LT(check.at("slots"), check.at("resident_slots")) << "units of the run share slots";
  for (const char* const fact : {"cpu", "memory_bytes", "compute_threads", "optimizer_threads"}) {
    EXPECT_FALSE(row.at("machine").at(fact).is_null()) << fact;
  }
  for (const char* const fact : {"longshore", "build", "libtorch", "system"}) {
    EXPECT_NE(row.at("versions").at(fact), "") << fact;
  }
  // Nothing measured this machine, so the row has no forecast.
  EXPECT_TRUE(row.at("rates").is_null());
  EXPECT_TRUE(row.at("tokens_per_second").at("planned").is_null());
}

// Goal: every recipe with random weights ends with a whole row, and leaves nothing behind.
TEST_F(BenchRun, EveryRecipeEndsWithARow) {
  int recipes = 0;
  for (const BenchRecipe& recipe : bench_recipes()) {
    if (recipe.reads_files()) continue;
    SCOPED_TRACE(recipe.name);
    expect_whole(row(recipe.name), recipe.name);
    ++recipes;
  }
  EXPECT_EQ(recipes, 7);
}

// Goal: the base of gpt-oss is read from the given files in every step, as planned.
TEST_F(BenchRun, ABaseInItsFilesIsGiven) {
  const Json found = row("gpt-oss-120b-lora", {"--model", make_model("tiny-gpt-oss")});
  expect_whole(found, "gpt-oss-120b-lora");
  EXPECT_EQ(found.at("weights"), "given");
}

// Goal: a recipe whose base stays in its files says that it needs a directory, and makes nothing.
TEST_F(BenchRun, ABaseInItsFilesNeedsADirectory) {
  const Ended ended = run("gpt-oss-120b-lora");
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_NE(ended.err.find("openai/gpt-oss-120b with --model"), std::string::npos) << ended.err;
  EXPECT_EQ(ended.out, "");
  EXPECT_TRUE(fs::is_empty(path("temporary")));
}

// Goal: weights of another family are refused, because the row would be of another recipe.
TEST_F(BenchRun, AModelOfAnotherFamilyIsRefused) {
  const Ended ended = run("8b-lora", {"--model", make_model("tiny-llama")});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_NE(ended.err.find("is a llama of"), std::string::npos) << ended.err;
}

// Goal: a recipe that does not fit is refused with the plan's arithmetic, and with the others.
TEST_F(BenchRun, ARecipeThatDoesNotFitNamesThoseThatMight) {
  const Ended ended = run("30b-a3b-full", {"--device-memory", "1MiB"});
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_NE(ended.err.find("too little"), std::string::npos) << ended.err;
  for (const BenchRecipe& recipe : bench_recipes()) {
    EXPECT_NE(ended.err.find("\n" + recipe.name + " "), std::string::npos) << ended.err;
  }
  EXPECT_EQ(ended.out, "");
  EXPECT_TRUE(fs::is_empty(path("temporary")));
}

// Goal: unknown recipes are answered with the nearest one.
TEST_F(BenchRun, AnUnknownRecipeIsAnsweredWithTheNearest) {
  const Ended ended = run("8b-qlra");
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_NE(ended.err.find("did you mean 8b-qlora?"), std::string::npos) << ended.err;
}

// Goal: a run writes no checkpoint and no export: its record alone is in the directory that the
// user keeps, and the row is appended to the file that the user named.
TEST_F(BenchRun, WritesItsRecordAlone) {
  const std::string rows = path("rows.jsonl");
  std::ofstream(rows) << "{}\n";
  row("8b-full", {"--keep", path("kept"), "--out", rows});
  EXPECT_FALSE(fs::exists(path("kept/run/checkpoints"))) << "a checkpoint of 8B is 61 GiB";
  EXPECT_FALSE(fs::exists(path("kept/run/hf")));
  EXPECT_LT(bytes_below(path("kept")), kMiB);
  EXPECT_TRUE(fs::exists(path("kept/run/metrics.jsonl")));
  std::ifstream file(rows);
  std::string first, second;
  std::getline(file, first);
  std::getline(file, second);
  EXPECT_EQ(first, "{}");
  EXPECT_EQ(Json::parse(second).at("recipe"), "8b-full");
  EXPECT_EQ(run("8b-full", {"--keep", path("kept")}).exit_code, 2) << "it is not empty";
}

// Goal: what the host has no room for goes to drives only where the user names one, and is removed.
TEST_F(BenchRun, DrivesAreUsedIfTheUserNamesThem) {
  const Arguments model = {"--model", make_model("small-qwen3")};
  const Bytes host = row("8b-full", model).at("bytes").at("host").at("planned").get<Bytes>();
  // The states of this model are several times as large as the buffers of a drive.
  const Arguments capped = joined(model, {"--host-memory", std::to_string(host - 8 * kMiB) + "B"});
  EXPECT_EQ(run("8b-full", capped).exit_code, 3);
  const std::string drive = made("drive");
  const Json found = row("8b-full", joined(capped, {"--nvme", drive}));
  expect_whole(found, "8b-full");
  EXPECT_EQ(found.at("settings").at("way").at("offload.optimizer"), "nvme");
  const Json& drives = found.at("bytes").at("drives");
  EXPECT_GT(drives.at("taken").get<Bytes>(), 0);
  EXPECT_LE(drives.at("taken"), drives.at("planned"));
  EXPECT_GT(found.at("moved").at("drive_write").at("measured").get<Bytes>(), 0);
  EXPECT_TRUE(fs::is_empty(drive));
  EXPECT_EQ(run("8b-qlora", {"--nvme", drive}).exit_code, 2) << "a packed base stays in memory";
}

// Goal: the folder of another bench run on a drive is not touched.
TEST_F(BenchRun, AnotherRunOnTheDriveIsLeftAlone) {
  const std::string folder = made("drive/longshore-bench");
  std::ofstream(folder + "/state") << "state";
  const Ended ended = run("8b-full", {"--nvme", path("drive")});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(fs::exists(folder + "/state"));
  EXPECT_TRUE(fs::is_empty(path("temporary")));
}

// Goal: the list has the real sizes of all recipes, and which of them fit under a cap.
TEST_F(BenchRun, TheListHasWhatEveryRecipeNeeds) {
  const Ended ended = run_command({"bench", "run", "--list", "--device-memory", "64MiB"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const BenchRecipe& recipe : bench_recipes()) {
    EXPECT_NE(ended.out.find("\n" + recipe.name + " "), std::string::npos) << ended.out;
  }
  EXPECT_EQ(ended.out.find(" fits "), std::string::npos) << ended.out;
  EXPECT_TRUE(fs::is_empty(path("temporary")));
}

// Goal: a stop signal ends the run after its step, without a row, and removes its directory.
TEST_F(BenchRun, AStopSignalLeavesNothing) {
  const std::string log = path("log");
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT, 0644);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    const std::string program = binary_directory() / "longshore";
    ::execl(program.c_str(), program.c_str(), "bench", "run", "8b-full", "--tiny", "--steps",
            "1000", nullptr);
    ::_exit(127);
  }
  const auto stepped = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(path("temporary"))) {
      std::error_code ignored;
      if (entry.path().filename() != "metrics.jsonl") continue;
      std::ifstream file(entry.path());
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      if (text.find("\"step\"") != std::string::npos) return true;
    }
    return false;
  };
  int status = 0;
  while (!stepped() && ::waitpid(child, &status, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ::kill(child, SIGTERM);
  ::waitpid(child, &status, 0);
  std::ifstream file(log);
  const std::string said{std::istreambuf_iterator<char>(file), {}};
  ASSERT_TRUE(WIFEXITED(status)) << said;
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM) << said;
  EXPECT_NE(said.find("stopping after this step"), std::string::npos) << said;
  EXPECT_EQ(said.find("\"row\""), std::string::npos) << said;
  EXPECT_TRUE(fs::is_empty(path("temporary")));
}

}  // namespace
}  // namespace longshore
