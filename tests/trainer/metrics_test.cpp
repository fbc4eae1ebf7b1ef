#include "trainer/metrics/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "tests/trainer/temporary_directory.h"
#include "trainer/directory/drive_record.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/use/evaluator.h"

namespace longshore {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void append(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(text_of(path));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

// Returns the kinds and steps of a file's lines: "start step1 step2 eval2 checkpoint2".
std::string outline(const std::string& path) {
  std::string text;
  for (const Json& line : lines_of(path)) {
    if (!text.empty()) text += ' ';
    text += line["kind"].get<std::string>();
    if (line.contains("step")) text += std::to_string(line["step"].get<int64_t>());
  }
  return text;
}

void write_steps(MetricsFile& file, int64_t from, int64_t to) {
  for (int64_t step = from; step <= to; ++step) file.write(StepRecord{.step = Step(step)});
}

class MetricsTest : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const std::string path_ = directory_.file("metrics.jsonl");
};

// A step line has the documented keys.
TEST_F(MetricsTest, AStepHasTheDocumentedKeys) {
  MetricsFile file = MetricsFile::begin(path_);
  file.write(StepRecord{.step = Step(3),
                        .loss = 1.5,
                        .grad_norm = 0.25,
                        .clip_scale = 0.5,
                        .lr = 2e-5,
                        .tokens = 100,
                        .trained_tokens = 90,
                        .sequences = 8,
                        .epoch = 0.75,
                        .seconds = 2.0,
                        .tokens_per_second = 50.0,
                        .stall_seconds = {{"optimizer", 0.125}},
                        .bytes = {{"h2d", 4096}},
                        .memory = {.device_peak = 1,
                                   .device_plan = 2,
                                   .device_tensors = 5,
                                   .allocator_retries = 6,
                                   .host_pinned = 3,
                                   .host_rss = 4},
                        .skipped = false,
                        .skipped_total = 2});
  const Json line = lines_of(path_).at(0);
  std::vector<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"kind", "step", "time", "loss", "grad_norm",
                                            "clip_scale", "lr", "tokens", "trained_tokens",
                                            "sequences", "epoch", "seconds", "tokens_per_second",
                                            "stall_seconds", "bytes", "memory_bytes",
                                            "allocator_retries", "skipped", "skipped_total"}));
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["lr"], 2e-5);
  EXPECT_EQ(line["stall_seconds"]["optimizer"], 0.125);
  EXPECT_EQ(line["bytes"]["h2d"], 4096);
  EXPECT_EQ(line["memory_bytes"]["host_rss"], 4);
  EXPECT_EQ(line["memory_bytes"]["device_tensors"], 5);
  EXPECT_EQ(line["allocator_retries"], 6);
  EXPECT_EQ(line["skipped"], false);
  EXPECT_GT(line["time"].get<double>(), 1.7e9);
}

// Token accuracy and entropy are in a line and drawn where the step has them.
TEST_F(MetricsTest, WhatTokensWerePredictedIsThereWhereKnown) {
  const StepRecord step{.step = Step(1), .token_accuracy = 0.625, .entropy = 1.5};
  MetricsFile file = MetricsFile::begin(path_);
  file.write(step);
  const Json line = lines_of(path_).at(0);
  EXPECT_EQ(line["token_accuracy"], 0.625);
  EXPECT_EQ(line["entropy"], 1.5);
  std::map<std::string, double> scalars;
  for (const Scalar& scalar : scalars_of(step)) scalars[scalar.tag] = scalar.value;
  EXPECT_EQ(scalars.at("train/token_accuracy"), 0.625);
  EXPECT_EQ(scalars.at("train/entropy"), 1.5);
}

// The routers' statistics are in a line if they are logged.
TEST_F(MetricsTest, WhatRoutersChoseIsThereWhereAsked) {
  MetricsFile file = MetricsFile::begin(path_);
  file.write(StepRecord{
      .step = Step(1),
      .aux_loss = 2.25,
      .router = RouterStatistics{
          .load = {{3, 1}, {0, 4}}, .most = 2.0, .idle = 1, .entropy = 0.5, .balance_loss = 2.25}});
  const Json line = lines_of(path_).at(0);
  EXPECT_EQ(line["aux_loss"], 2.25);
  EXPECT_EQ(line["router"], Json::parse(R"({"load": [[3, 1], [0, 4]], "max_load": 2.0,
                                            "idle_experts": 1, "entropy": 0.5, "dropped": 0})"));
  RouterStatistics figures;
  figures.most = 2.0;
  std::map<std::string, double> scalars;
  for (const Scalar& scalar : scalars_of(StepRecord{.router = figures})) {
    scalars[scalar.tag] = scalar.value;
  }
  EXPECT_EQ(scalars.at("router/max_load"), 2.0);
  EXPECT_FALSE(scalars.contains("train/aux_loss"));
}

// Numbers read back with the same bits.
TEST_F(MetricsTest, NumbersReadBackToTheSameBits) {
  std::mt19937_64 random(7);
  MetricsFile file = MetricsFile::begin(path_);
  std::vector<double> values = {0.1, 1e-300, 5e-324, 123456789.123456789, 1.0 / 3.0, -0.0};
  while (values.size() < 2000) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  for (const double value : values) file.write(StepRecord{.step = Step(1), .loss = value});
  const std::vector<Json> lines = lines_of(path_);
  ASSERT_EQ(lines.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double read = lines[i]["loss"].get<double>();
    ASSERT_EQ(std::bit_cast<uint64_t>(read), std::bit_cast<uint64_t>(values[i])) << values[i];
  }
}

// Values that are not finite become null.
TEST_F(MetricsTest, WhatIsNotFiniteIsNull) {
  MetricsFile file = MetricsFile::begin(path_);
  file.write(StepRecord{.step = Step(1),
                        .loss = std::numeric_limits<double>::quiet_NaN(),
                        .grad_norm = std::numeric_limits<double>::infinity(),
                        .skipped = true});
  const Json line = lines_of(path_).at(0);
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
  EXPECT_EQ(line["skipped"], true);
}

// Lines of other kinds have their documented keys.
TEST_F(MetricsTest, OtherKindsHaveTheirKeys) {
  MetricsFile file = MetricsFile::begin(path_);
  file.write(StartRecord{.plan = "p", .config_hash = "c", .ranks = 2});
  file.write(EvalRecord{.step = Step(4),
                        .loss = 1.0,
                        .perplexity = 2.718,
                        .token_accuracy = 0.25,
                        .tokens = 9,
                        .seconds = 1});
  file.write(CheckpointRecord{.step = Step(4), .path = "runs/x", .bytes = 10, .seconds = 0.5});
  file.write(
      EventRecord{.level = "warning", .code = "checkpoint_refused", .text = "bad \xff byte\n"});
  file.write(EndRecord{.status = "stopped", .exit_code = 143, .steps = 4});
  const std::vector<Json> lines = lines_of(path_);
  EXPECT_EQ(outline(path_), "start eval4 checkpoint4 event end");
  EXPECT_EQ(lines[0]["ranks"], 2);
  EXPECT_EQ(lines[1]["perplexity"], 2.718);
  EXPECT_EQ(lines[1]["token_accuracy"], 0.25);
  EXPECT_EQ(lines[2]["bytes"], 10);
  EXPECT_EQ(lines[3]["code"], "checkpoint_refused");
  EXPECT_EQ(lines[4]["exit_code"], 143);
}

// A resume cuts all lines after the restored step.
TEST_F(MetricsTest, ResumeCutsEverythingAfterTheRestoredStep) {
  {
    MetricsFile file = MetricsFile::begin(path_);
    file.write(StartRecord{});
    write_steps(file, 1, 3);
    file.write(EvalRecord{.step = Step(3)});
    file.write(CheckpointRecord{.step = Step(3)});
    file.write(EventRecord{.level = "info"});
    write_steps(file, 4, 6);
    file.write(EndRecord{.status = "stopped"});
  }
  MetricsFile file = MetricsFile::resume(path_, Step(3));
  EXPECT_EQ(outline(path_), "start step1 step2 step3 eval3 checkpoint3");
  write_steps(file, 4, 5);
  EXPECT_EQ(outline(path_), "start step1 step2 step3 eval3 checkpoint3 step4 step5");
}

// A torn last line, or zeros of a lost write, is cut off when a run resumes.
TEST_F(MetricsTest, ResumeDropsATornLastLineAndZeroesOfALostWrite) {
  for (const std::string& torn : {std::string(R"({"kind":"step","step":3,"lo)"),
                                  std::string(64, '\0'), std::string("}{\n")}) {
    {
      MetricsFile file = MetricsFile::begin(path_);
      write_steps(file, 1, 2);
    }
    const std::string whole = text_of(path_);
    append(path_, torn);
    MetricsFile::resume(path_, Step(7));
    EXPECT_EQ(text_of(path_), whole);
  }
}

// A complete last line without line feed counts as torn.
TEST_F(MetricsTest, ACompleteLineWithoutItsLineFeedIsTorn) {
  {
    MetricsFile file = MetricsFile::begin(path_);
    write_steps(file, 1, 2);
  }
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  MetricsFile::resume(path_, Step(2));
  EXPECT_EQ(outline(path_), "step1");
}

// A damaged line in the middle costs no other line.
TEST_F(MetricsTest, ADamagedLineInTheMiddleCostsNoOtherLine) {
  MetricsFile file = MetricsFile::begin(path_);
  write_steps(file, 1, 1);
  append(path_, "not json\n[1]\n{\"kind\":\"step\"}\n{\"kind\":\"step\",\"step\":\"x\"}\n");
  write_steps(file, 2, 3);
  const std::string whole = text_of(path_);
  MetricsFile::resume(path_, Step(3));
  EXPECT_EQ(text_of(path_), whole);
}

// A resume without a file starts one.
TEST_F(MetricsTest, ResumeWithoutAFileBeginsOne) {
  MetricsFile file = MetricsFile::resume(path_, Step(5));
  write_steps(file, 6, 6);
  EXPECT_EQ(outline(path_), "step6");
}

// A new run empties the file of a former run.
TEST_F(MetricsTest, BeginEmptiesAFormerRunsFile) {
  append(path_, "old\n");
  MetricsFile::begin(path_);
  EXPECT_EQ(text_of(path_), "");
}

// Goal: a hole of a terabyte takes no time, and the lines behind it count.
TEST_F(MetricsTest, ReadersPassOverHoles) {
  append(path_, "{\"kind\":\"step\",\"step\":1}\n");
  std::filesystem::resize_file(path_, uintmax_t{1} << 40);
  EXPECT_EQ(last_step_of_metrics(path_), 1);
  append(path_, "\n{\"kind\":\"step\",\"step\":2}\n");
  EXPECT_EQ(last_step_of_metrics(path_), 2);
  EXPECT_EQ(metrics_cut_offset(path_, Step(2)), Bytes(std::filesystem::file_size(path_)));
}

// Readers skip lines with wrong types, as no run writes them.
TEST_F(MetricsTest, ReadersBelieveNoType) {
  append(path_,
         "{\"kind\":7,\"step\":1}\n{\"kind\":[\"step\"],\"step\":1}\n"
         "{\"kind\":{\"eval\":1},\"loss\":1}\n{\"kind\":\"step\",\"step\":-4}\n"
         "{\"kind\":\"step\",\"step\":1.5}\n{\"kind\":\"step\",\"step\":18446744073709551615}\n"
         "{\"kind\":\"step\",\"step\":1,\"seconds\":\"x\",\"loss\":[]}\n"
         "{\"kind\":\"eval\",\"step\":1,\"loss\":{}}\n" +
             std::string(70, '[') + "\"step\"\n{\"kind\":\"commit\"}\n\"commit\"\n");
  EXPECT_EQ(last_step_of_metrics(path_), 1);
  EXPECT_FALSE(measured_step_seconds(path_));
  EXPECT_EQ(EvalTracker::of_metrics(path_).without_gain(), 1) << "a loss that is no number";
  const Bytes all = metrics_cut_offset(path_, Step(1));
  EXPECT_GT(all, 0);
  EXPECT_EQ(read_committed_steps(directory_.path()).any, false);
}

// Goal: on a full disk lines wait and the run continues; they are written once there is space.
TEST_F(MetricsTest, ADiskThatIsFullMakesLinesWait) {
  MetricsFile file = MetricsFile::begin(path_);
  write_steps(file, 1, 2);
  const std::string before = text_of(path_);
  struct rlimit former{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &former), 0);
  struct sigaction ignore{}, signal_before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &signal_before);
  struct rlimit full = former;
  full.rlim_cur = before.size() + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  write_steps(file, 3, 4);
  const std::string failure = file.failure();
  const std::string meanwhile = text_of(path_);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &former), 0);
  ::sigaction(SIGXFSZ, &signal_before, nullptr);
  EXPECT_NE(failure.find(path_), std::string::npos) << failure;
  EXPECT_EQ(meanwhile, before) << "no torn line";
  file.sync();
  EXPECT_EQ(file.failure(), "");
  EXPECT_EQ(outline(path_), "step1 step2 step3 step4");
}

// Goal: if the file is removed, the next line reports a failure until it is back.
TEST_F(MetricsTest, AFileThatIsTakenAwayIsAFailureUntilItIsBack) {
  MetricsFile file = MetricsFile::begin(path_);
  write_steps(file, 1, 2);
  const std::string aside = path_ + ".aside";
  ASSERT_EQ(std::rename(path_.c_str(), aside.c_str()), 0);
  write_steps(file, 3, 3);
  EXPECT_NE(file.failure().find(path_ + ": was removed or replaced"), std::string::npos);
  std::ofstream(path_) << "somebody else's\n";
  write_steps(file, 4, 4);
  EXPECT_NE(file.failure(), "");
  EXPECT_EQ(text_of(path_), "somebody else's\n");
  ASSERT_EQ(std::rename(aside.c_str(), path_.c_str()), 0);
  file.sync();
  EXPECT_EQ(file.failure(), "");
  EXPECT_EQ(outline(path_), "step1 step2 step3 step4");
}

// The lines of an abandoned history are kept in a file of their own.
TEST_F(MetricsTest, ACourseThatIsLeftKeepsItsRecord) {
  {
    MetricsFile file = MetricsFile::begin(path_);
    write_steps(file, 1, 5);
  }
  const std::string whole = text_of(path_);
  EXPECT_EQ(MetricsFile::set_aside(path_, Step(5)), "") << "nothing is cut";
  EXPECT_EQ(MetricsFile::set_aside(path_, Step(2)), path_ + ".abandoned");
  EXPECT_EQ(MetricsFile::set_aside(path_, Step(0)), path_ + ".abandoned-2");
  EXPECT_EQ(text_of(path_ + ".abandoned"), whole);
  EXPECT_EQ(text_of(path_), whole);
}

// The seconds of a step are the median of the last steps.
TEST(StepSeconds, AreTheMedianOfTheLastSteps) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/metrics.jsonl";
  EXPECT_FALSE(measured_step_seconds(path));
  std::ofstream file(path);
  file << R"({"kind": "start", "resumed_from_step": 0})" << "\n";
  file.flush();
  EXPECT_FALSE(measured_step_seconds(path));
  for (int i = 0; i < 30; ++i) file << R"({"kind": "step", "step": 1, "seconds": 9.0})" << "\n";
  for (int i = 0; i < 100; ++i) file << R"({"kind": "step", "step": 1, "seconds": 2.5})" << "\n";
  file << R"({"kind": "step", "seco)";
  file.close();
  EXPECT_EQ(measured_step_seconds(path), 2.5);
}

}  // namespace
}  // namespace longshore
