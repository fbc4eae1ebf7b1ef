// Ranks that were started with different run files, models or data. Goal: all of them end with the
// same error before the first step, and nothing of the run is written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hf/safetensors_reader.h"
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

  // Changes the lowest bit of an element of rank 1's weights; counts from the end if negative.
  void change_weight(const std::string& name, int64_t element) const {
    const std::string path = home(1) + "/model/model.safetensors";
    const TensorInfo tensor = SafetensorsFile::open(path).tensor(name);
    if (element < 0) element += tensor.elements();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(tensor.file_begin + element * (tensor.bytes / tensor.elements()));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::cur);
    file.put(byte);
    EXPECT_TRUE(file.flush());
  }

  const RunDriver run_{"differing"};
  const std::string program_ = (binary_directory() / "longshore").string();
  std::string other_program_;  // rank 1's; empty: the same
  Arguments more_;             // keys of the run file for all ranks

 private:
  // Prepares the child's work before the fork, because little is allowed between fork and exec.
  pid_t start(int rank, const std::string& port) const {
    const std::string own = std::to_string(rank);
    const std::string& program = rank == 1 && !other_program_.empty() ? other_program_ : program_;
    Arguments words = joined({program, "train", "run.toml"}, RunDriver::golden_arguments("llama"));
    words = joined(words, {"--model.path=\"model\"", "--data.train=[\"rows.jsonl\"]",
                           "--train.steps=2", "--run.dir=\"" + run_.directory() + "\"",
                           "--data.cache=\"" + run_.directory() + "/cache\""});
    words = joined(words, more_);
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

// One bit of the weights is refused with its tensor, whichever rank's shard it lies in.
TEST_F(DifferingRanks, InTheWeightsAreRefused) {
  const std::string tensor = "model.embed_tokens.weight";
  for (const int64_t element : {0, -1}) {
    change_weight(tensor, element);
    expect_refused("the weights: tensor '" + tensor + "'");
    change_weight(tensor, element);
  }
  for (const Ended& ended : train()) EXPECT_EQ(ended.exit_code, 0) << ended.output;
}

// Ranks that each hold the whole model compare what they load, frozen parameters too.
TEST_F(DifferingRanks, InTheWeightsOfWholeCopiesAreRefused) {
  more_ = {"--fsdp.strategy=no_shard", "--train.freeze=[\"model.embed_tokens.*\"]"};
  change_weight("model.embed_tokens.weight", 1);
  expect_refused("the weights: tensor 'model.embed_tokens.weight'");
}

// Ranks of different builds are refused before anything else is compared.
TEST_F(DifferingRanks, InTheProgramAreRefused) {
  std::ifstream file(program_, std::ios::binary);
  std::string program{std::istreambuf_iterator<char>(file), {}};
  const std::string note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16);
  const size_t at = program.find(note);
  ASSERT_NE(at, std::string::npos) << program_ << " has no build id";
  char& first = program[at + note.size()];
  first = static_cast<char>(first ^ 1);
  other_program_ = home(1) + "/longshore";
  std::ofstream(other_program_, std::ios::binary) << program;
  fs::permissions(other_program_, fs::perms::owner_all);
  expect_refused("the program's build: ");
}

// Ranks that would make other groups of ranks are refused, instead of waiting for each other.
TEST_F(DifferingRanks, InTheStrategyAreRefused) {
  std::ofstream(home(1) + "/run.toml") << "[fsdp]\nstrategy = \"no_shard\"\n";
  expect_refused("the groups of ranks: ");
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
