// Ranks that were started with different run files, models or data. Goal: all of them end with the
// same error before the first step, and nothing of the run is written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/comm/free_fixed_port.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// DifferingRanks: two ranks as on a cluster, each with the files of its own directory.
class DifferingRanks : public testing::Test {
 protected:
  struct Ended {
    int exit_code;
    std::string output;
  };

  void SetUp() override {
    for (const int rank : {0, 1}) {
      fs::create_directories(home(rank));
      std::ofstream(home(rank) + "/run.toml").close();
      fs::copy(golden_directory("llama"), home(rank) + "/model");
      fs::copy(golden_directory("llama") + "/train.jsonl", home(rank) + "/rows.jsonl");
    }
  }
  std::string home(int rank) const { return run_.directory() + "/rank" + std::to_string(rank); }

  std::vector<Ended> train() const {
    const std::string port = std::to_string(free_fixed_port());
    std::vector<pid_t> ranks;
    for (const int rank : {0, 1}) ranks.push_back(start(rank, port));
    std::vector<Ended> ended;
    for (const int rank : {0, 1}) {
      int status = 0;
      EXPECT_EQ(::waitpid(ranks[static_cast<size_t>(rank)], &status, 0),
                ranks[static_cast<size_t>(rank)]);
      std::ifstream file(home(rank) + "/output");
      ended.push_back({WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                       {std::istreambuf_iterator<char>(file), {}}});
    }
    return ended;
  }

  // Returns the files of the run itself, without those of its ranks' directories.
  std::map<std::string, std::string> record() const {
    std::map<std::string, std::string> record = record_of(run_.directory());
    std::erase_if(record, [](const auto& file) {
      return file.first.starts_with("rank") || file.first.starts_with("cache");
    });
    return record;
  }

  void expect_refused(const std::string& words) const {
    const std::map<std::string, std::string> before = record();
    for (const Ended& ended : train()) {
      EXPECT_EQ(ended.exit_code, 2) << ended.output;
      EXPECT_NE(ended.output.find("rank 1 differs from rank 0 in " + words), std::string::npos)
          << words << " in " << ended.output;
    }
    EXPECT_TRUE(record() == before);
  }

  const RunDriver run_{"differing"};

 private:
  // Prepares the child's work before the fork, because little is allowed between fork and exec.
  pid_t start(int rank, const std::string& port) const {
    const std::string own = std::to_string(rank);
    Arguments words = joined({(binary_directory() / "longshore").string(), "train", "run.toml"},
                             RunDriver::golden_arguments("llama"));
    words = joined(words, {"--model.path=\"model\"", "--data.train=[\"rows.jsonl\"]",
                           "--train.steps=2", "--run.dir=\"" + run_.directory() + "\"",
                           "--data.cache=\"" + run_.directory() + "/cache\""});
    Arguments variables = {"RANK=" + own,           "LOCAL_RANK=" + own,  "WORLD_SIZE=2",
                           "LOCAL_WORLD_SIZE=2",    "GROUP_RANK=0",       "GROUP_WORLD_SIZE=1",
                           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      variables.emplace_back(*variable);
    }
    const std::vector<char*> argv = pointers(words), environment = pointers(variables);
    const std::string directory = home(rank), output = directory + "/output";
    const pid_t child = ::fork();
    if (child != 0) return child;
    const int fd = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    if (::chdir(directory.c_str()) == 0) ::execve(argv[0], argv.data(), environment.data());
    ::_exit(127);
  }
  static std::vector<char*> pointers(Arguments& words) {
    std::vector<char*> list;
    for (std::string& word : words) list.push_back(word.data());
    list.push_back(nullptr);
    return list;
  }
};

// Ranks with the same files train.
TEST_F(DifferingRanks, ThatDoNotDifferTrain) {
  for (const Ended& ended : train()) EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_EQ(run_.steps("loss").size(), 2u);
}

// Ranks with different run files are refused, and the key is named.
TEST_F(DifferingRanks, InARunFileAreRefused) {
  std::ofstream(home(1) + "/run.toml") << "[optimizer]\ndecay = \"all\"\n";
  expect_refused("the run file: ");
  EXPECT_NE(train().front().output.find("decay = \"all\""), std::string::npos) << "the key";
}

// Ranks with different configs of one model are refused, although the tensors are equal.
TEST_F(DifferingRanks, InTheModelAreRefused) {
  Json config = read_json_file(home(1) + "/model/config.json", JsonLimits{});
  config["rms_norm_eps"] = 2.0 * config.at("rms_norm_eps").get<double>();
  std::ofstream(home(1) + "/model/config.json") << config.dump();
  expect_refused("the model: ");
}

// Ranks with different data of equal counts are refused; the run on disk stays unchanged.
TEST_F(DifferingRanks, InTheDataAreRefused) {
  for (const Ended& ended : train()) ASSERT_EQ(ended.exit_code, 0) << ended.output;
  ASSERT_TRUE(record().contains("run.json"));
  std::ifstream before(home(0) + "/rows.jsonl");
  std::string text{std::istreambuf_iterator<char>(before), {}};
  const size_t first = text.find('[') + 1, comma = text.find(',', first);
  const int token = std::stoi(text.substr(first, comma - first));
  text.replace(first, comma - first, std::to_string(token == 3 ? 4 : 3));
  std::ofstream(home(1) + "/rows.jsonl") << text;
  expect_refused("the training data: ");
}

}  // namespace
}  // namespace longshore
