// Stopping and resuming a run, and damage to what it saved.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

constexpr int64_t kSteps = 60;

// Returns a run with all kinds of state: shuffled rows, packing, clipping and a schedule.
std::vector<std::string> arguments() {
  std::vector<std::string> list = RunDriver::golden_arguments("llama-tied");
  list.insert(list.end(),
              {"--train.steps=" + std::to_string(kSteps), "--train.max_grad_norm=0.9",
               "--data.shuffle=true", "--data.packing=true", "--schedule.name=cosine",
               "--schedule.warmup_steps=5", "--checkpoint.every_steps=10", "--checkpoint.keep=3"});
  return list;
}

// Returns the step lines without values that depend on time or process.
std::vector<std::string> comparable_steps(const RunDriver& run) {
  std::vector<std::string> lines;
  for (Json step : run.metrics("step")) {
    for (const char* key :
         {"time", "seconds", "tokens_per_second", "memory_bytes", "stall_seconds"}) {
      step.erase(key);
    }
    // A checkpoint applies the update that the next step would have applied.
    step.at("bytes").erase("update");
    lines.push_back(step.dump());
  }
  return lines;
}

int64_t lines_of(const std::string& path) {
  std::ifstream file(path);
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

// Trains until metrics.jsonl has `lines` more lines, then sends the process a real SIGTERM.
int train_and_stop(const RunDriver& run, int64_t lines) {
  const std::string path = run.directory() + "/metrics.jsonl";
  const int64_t target = lines_of(path) + lines;
  std::atomic<bool> done = false;
  std::thread killer([&] {
    while (!done && lines_of(path) < target) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    if (!done) ::kill(::getpid(), SIGTERM);
  });
  const int exit_code = run.train(arguments());
  done = true;
  killer.join();
  return exit_code;
}

// Twenty stops at random steps of one run end with the bits of an unbroken run.
TEST(Resume, AfterTwentyStopsEqualsTheUnbrokenRun) {
  RunDriver unbroken("unbroken");
  ASSERT_EQ(unbroken.train(arguments()), 0);

  // SIGTERM may arrive just after the run's handlers are gone, and must not kill the test.
  struct sigaction ignore{}, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGTERM, &ignore, &before);
  RunDriver broken("broken");
  std::mt19937 random(7);
  int stops = 0;
  for (int i = 0; i < 20; ++i) {
    const int exit_code = train_and_stop(broken, 1 + static_cast<int64_t>(random() % 3));
    ASSERT_TRUE(exit_code == 128 + SIGTERM || exit_code == 0) << exit_code;
    if (exit_code == 0) break;
    ++stops;
  }
  EXPECT_EQ(broken.train(arguments()), 0);
  sigaction(SIGTERM, &before, nullptr);

  EXPECT_GE(stops, 12) << "the run ended too soon to be stopped often";
  EXPECT_EQ(comparable_steps(broken), comparable_steps(unbroken));
  EXPECT_TRUE(broken.state() == unbroken.state());
}

void damage(const std::string& path, const std::string& how) {
  if (how == "missing") {
    std::filesystem::remove(path);
  } else if (how == "truncated") {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  } else {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(std::filesystem::file_size(path) * 2 / 3));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(-1, std::ios::cur);
    file.put(byte);
  }
}

// A damaged checkpoint is named and skipped, and the run resumes from the one before.
TEST(Resume, PassesOverDamagedCheckpoints) {
  RunDriver unbroken("undamaged");
  ASSERT_EQ(unbroken.train(arguments()), 0);
  for (const std::string file : {"state-00000-of-00001.safetensors", "manifest.json"}) {
    for (const std::string how : {"flipped", "missing", "truncated"}) {
      RunDriver run("damaged");
      std::vector<std::string> half = arguments();
      half.push_back("--train.steps=30");
      half.push_back("--schedule.name=constant");
      half.push_back("--schedule.warmup_steps=0");
      ASSERT_EQ(run.train(half), 0);
      damage(run.directory() + "/checkpoints/step-00000030/" + file, how);
      testing::internal::CaptureStderr();
      EXPECT_EQ(run.train(half), 0);
      const std::string messages = testing::internal::GetCapturedStderr();
      EXPECT_NE(messages.find("step-00000030"), std::string::npos) << file << " " << how;
      EXPECT_NE(messages.find("after step 20"), std::string::npos) << messages;
      EXPECT_EQ(run.steps("loss").size(), 30u);
    }
  }
}

// A run without a valid checkpoint ends with code 6.
TEST(Resume, EndsWithCodeSixWhenNoCheckpointIsValid) {
  RunDriver run("all-damaged");
  std::vector<std::string> few = arguments();
  few.push_back("--train.steps=10");
  ASSERT_EQ(run.train(few), 0);
  damage(run.directory() + "/checkpoints/step-00000010/manifest.json", "flipped");
  EXPECT_EQ(run.train(few), 6);
}

// A resume with other data or another model is refused.
TEST(Resume, RefusesOtherDataAndOtherModels) {
  RunDriver run("other-data");
  std::vector<std::string> few = arguments();
  few.push_back("--train.steps=10");
  ASSERT_EQ(run.train(few), 0);
  std::vector<std::string> other_seed = few;
  other_seed.push_back("--run.seed=7");
  EXPECT_EQ(run.train(other_seed), 6);
  // The data has one more row, as after collecting further.
  const std::string rows = run.directory() + "/more.jsonl";
  std::filesystem::copy_file(golden_directory("llama-tied") + "/train.jsonl", rows);
  std::ofstream(rows, std::ios::app) << "{\"input_ids\": [1, 2, 3]}\n";
  std::vector<std::string> other_data = few;
  other_data.push_back("--data.train=[\"" + rows + "\"]");
  EXPECT_EQ(run.train(other_data), 6);
  std::vector<std::string> other_model = few;
  other_model.push_back("--model.path=\"" + golden_directory("llama") + "\"");
  EXPECT_EQ(run.train(other_model), 6);
  std::vector<std::string> anew = other_model;
  anew.push_back("--checkpoint.resume=never");
  EXPECT_EQ(run.train(anew), 0);
  EXPECT_TRUE(std::filesystem::exists(run.directory() + "/checkpoints/step-00000010.abandoned"));
}

}  // namespace
}  // namespace longshore
