#include "tests/parity/run_driver.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

#include "device/cuda_runtime.h"
#include "hf/safetensors_reader.h"
#include "tests/fakes/golden_weights.h"
#include "tests/fakes/test_files.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/commands/command_line.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {

namespace {

const std::string kDense = "/parity/golden/";
const std::string kExperts = "/parity/golden_moe/";
const std::string kMxfp4 = "/parity/golden_mxfp4/";
const std::string kAdapters = "/parity/golden_adapter/";

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test_data() + folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string golden_directory(const std::string& name) {
  for (const std::string& folder : {kExperts, kMxfp4}) {
    const std::string found = test_data() + folder + name;
    if (std::filesystem::exists(found)) return with_weights(found);
  }
  return with_weights(test_data() + kDense + name);
}

std::vector<std::string> golden_names() {
  return names_in(kDense);
}

std::vector<std::string> expert_golden_names() {
  return names_in(kExperts);
}

std::string adapter_golden_directory(const std::string& name) {
  return test_data() + kAdapters + name;
}

std::vector<std::string> adapter_golden_names() {
  return names_in(kAdapters);
}

Json golden_facts(const std::string& name) {
  return read_json_file(golden_directory(name) + "/golden.json", JsonLimits{});
}

std::string scratch_directory(const std::string& name) {
  const std::string path =
      testing::TempDir() + "longshore-" + std::to_string(::getpid()) + "-" + name;
  std::filesystem::remove_all(path);
  return path;
}

std::string golden_test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

namespace {

// Copies the record of a GPU's self-check between a run's cache and a folder of all test processes,
// so that only the first run on a GPU is preceded by the check, which takes seconds.
class SharedSelfCheck {
 public:
  explicit SharedSelfCheck(std::string directory) : directory_(std::move(directory)) {
    if (!cuda_devices().empty()) copy(shared_, directory_);
  }
  SharedSelfCheck(const SharedSelfCheck&) = delete;
  SharedSelfCheck& operator=(const SharedSelfCheck&) = delete;
  ~SharedSelfCheck() { copy(directory_, shared_); }

 private:
  static void copy(const std::string& from, const std::string& to) {
    using std::filesystem::copy_options;
    std::error_code ignored;
    if (!std::filesystem::exists(from, ignored)) return;
    std::filesystem::create_directories(to, ignored);
    // Without `recursive` the other option would leave out all files.
    std::filesystem::copy(from, to, copy_options::skip_existing | copy_options::recursive, ignored);
  }

  std::string directory_, shared_ = testing::TempDir() + "longshore-gpu-checks";
};

}  // namespace

RunDriver::RunDriver(const std::string& name, SelfChecks self_checks)
    : directory_(scratch_directory(name)), self_checks_(self_checks) {}

RunDriver::~RunDriver() {
  std::filesystem::remove_all(directory_);
}

std::vector<std::string> RunDriver::golden_arguments(const std::string& golden) {
  const Json facts = golden_facts(golden);
  const Json& adamw = facts.at("adamw");
  const std::string rows = golden_directory(golden) + "/train.jsonl";
  return {"--model.path=\"" + golden_directory(golden) + "\"",
          "--data.train=[\"" + rows + "\"]",
          "--data.format=tokens",
          "--data.packing=false",
          "--data.shuffle=false",
          "--data.max_tokens=40",
          "--train.steps=" + facts.at("steps").dump(),
          "--train.sequences_per_step=" + facts.at("sequences_per_step").dump(),
          "--train.max_grad_norm=0.0",
          "--optimizer.lr=" + adamw.at("lr").dump(),
          "--optimizer.betas=" + adamw.at("betas").dump(),
          "--optimizer.eps=" + adamw.at("eps").dump(),
          "--optimizer.weight_decay=" + adamw.at("weight_decay").dump(),
          "--schedule.name=constant",
          "--precision.compute=fp32",
          "--checkpoint.export=never",
          "--device.kind=cpu",
          "--device.threads=1",
          "--offload.threads=1",
          "--offload.state_format=split",
          "--log.every_steps=1000"};
}

int RunDriver::train(const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {"train"};
  std::filesystem::create_directories(directory_);
  const std::string empty = directory_ + "/empty.toml";
  std::ofstream(empty).close();
  command.push_back(empty);
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back("--run.dir=\"" + directory_ + "\"");
  command.push_back("--data.cache=\"" + directory_ + "/cache\"");
  std::optional<SharedSelfCheck> shared;
  if (self_checks_ == SelfChecks::kShared) shared.emplace(directory_ + "/cache/gpu");
  return run_command_line(command);
}

int RunDriver::start_ranks(int ranks, const std::vector<std::string>& arguments) const {
  std::filesystem::create_directories(directory_);
  const std::string empty = directory_ + "/empty.toml";
  std::ofstream(empty).close();
  std::vector<std::string> command = {binary_directory() / "longshore"};
  if (ranks > 1) {
    command.insert(command.end(), {"launch", "--nproc", std::to_string(ranks), "--"});
  }
  command.insert(command.end(), {"train", empty});
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back("--run.dir=\"" + directory_ + "\"");
  command.push_back("--data.cache=\"" + directory_ + "/cache\"");
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  const std::string log = directory_ + "/ranks.log";
  const pid_t child = ::fork();
  if (child != 0) return child;
  before_exec_();
  ::setpgid(0, 0);
  const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::execv(words.front(), words.data());
  ::_exit(127);
}

int RunDriver::train_ranks(int ranks, const std::vector<std::string>& arguments) const {
  const pid_t launcher = start_ranks(ranks, arguments);
  int status = 0;
  EXPECT_EQ(::waitpid(launcher, &status, 0), launcher);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Json RunDriver::plan(int ranks) const {
  testing::internal::CaptureStdout();
  const int exit_code =
      run_command_line({"plan", directory_ + "/config.toml", "--json", "--ranks",
                        std::to_string(ranks), "--ranks-per-node", std::to_string(ranks)});
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(exit_code, 0) << text;
  return Json::parse(text);
}

std::string RunDriver::output() const {
  std::ifstream file(directory_ + "/ranks.log");
  return {std::istreambuf_iterator<char>(file), {}};
}

void RunDriver::expect_within_plan() const {
  const std::vector<Json> steps = metrics("step");
  EXPECT_FALSE(steps.empty());
  for (const Json& step : steps) {
    const Json& memory = step.at("memory_bytes");
    EXPECT_LE(memory.at("device_peak").get<int64_t>(), memory.at("device_plan").get<int64_t>());
    EXPECT_GT(memory.at("device_peak").get<int64_t>(), 0);
  }
}

std::vector<Json> RunDriver::metrics(const std::string& kind) const {
  std::ifstream file(directory_ + "/metrics.jsonl");
  std::vector<Json> objects;
  std::string line;
  while (std::getline(file, line)) {
    Json object = Json::parse(line);
    if (object.at("kind") == kind) objects.push_back(std::move(object));
  }
  return objects;
}

size_t RunDriver::metrics_lines() const {
  std::ifstream file(directory_ + "/metrics.jsonl");
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

std::vector<double> RunDriver::steps(const std::string& key) const {
  std::vector<double> values;
  for (const Json& step : metrics("step")) values.push_back(step.at(key).get<double>());
  return values;
}

std::map<std::string, std::vector<float>> RunDriver::state() const {
  const FoundCheckpoint found = find_checkpoint(directory_ + "/checkpoints", "auto");
  std::map<std::string, std::vector<float>> state;
  if (!found.checkpoint) return state;
  for (const CheckpointParameter& parameter : found.checkpoint->manifest().parameters) {
    int64_t elements = 1;
    for (int64_t dimension : parameter.shape) elements *= dimension;
    std::vector<std::string> kinds = {kMasterKind};
    for (const CheckpointRegion& region : found.checkpoint->manifest().regions) {
      kinds.push_back(region.name);
    }
    for (const std::string& kind : kinds) {
      std::vector<float> values(static_cast<size_t>(elements));
      found.checkpoint->read(parameter.name, kind, 0, values);
      state[parameter.name + "." + kind] = std::move(values);
    }
  }
  return state;
}

std::map<std::string, std::string> record_of(const std::string& directory) {
  std::map<std::string, std::string> record;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().lexically_relative(directory).string();
    if (!entry.is_regular_file() || name == "lock") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    record[name].assign(std::istreambuf_iterator<char>(file), {});
  }
  return record;
}

std::map<std::string, std::vector<float>> read_tensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, std::vector<float>> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.bytes) / sizeof(float));
    file.read(tensor, 0, std::as_writable_bytes(std::span(values)));
    tensors[tensor.name] = std::move(values);
  }
  return tensors;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

double eval_loss(const Arguments& arguments) {
  testing::internal::CaptureStdout();
  const int exit_code = run_command_line(joined({"eval", "--json"}, arguments));
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(exit_code, 0) << text;
  return exit_code == 0 ? Json::parse(text).at("loss").get<double>() : 0.0;
}

}  // namespace longshore
