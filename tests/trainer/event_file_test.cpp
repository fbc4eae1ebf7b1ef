#include "trainer/metrics/event_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/errors.h"
#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/metrics/metrics.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns a directory's event files in the order in which TensorBoard reads them.
std::vector<std::string> event_files(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(directory)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

// Returns the records' content without their framing, which other tests check.
std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  for (size_t at = 0; at + 12 <= bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    records.push_back(bytes.substr(at + 12, length));
    at += 12 + length + 4;
  }
  return records;
}

// Goal: event files have the bytes of the tensorboard package, so that every reader can read them.
TEST(EventFile, RecordsAreTheBytesThatTensorBoardWrites) {
  const std::string golden = bytes_of_file(test_data() + "/trainer/events_golden.tfevents");
  ASSERT_FALSE(golden.empty());
  const std::string ours =
      version_event(1.5) + restart_event(1.75e9, Step(301)) +
      scalar_event(1.75e9 + 0.125, Step(301),
                   {{"train/loss", 1.5},
                    {"train/lr", 1e-5},
                    {"memory_bytes/host_rss", 98765432100.0},
                    {"train/grad_norm", std::numeric_limits<double>::quiet_NaN()},
                    {"stall_seconds/h2d", 0.0}}) +
      scalar_event(1.75e9 + 1, Step(int64_t{1} << 40), {{"eval/loss", -0.0}}) +
      scalar_event(1.75e9 + 2, Step(0), {});
  EXPECT_EQ(ours, golden);
}

// Goal: a run that resumes keeps older files, and its own is read after them, even if two starts
// fall into one second or the clock was set back.
TEST(EventFile, EveryStartHasAFileThatIsReadAfterAllOthers) {
  const TemporaryDirectory directory;
  const std::string folder = directory.file("tensorboard");
  EventFile first(folder, 1000.0, Step(1));
  first.add(1000.5, Step(1), {{"train/loss", 2.0}});
  const std::string before = bytes_of_file(first.path());
  const EventFile second(folder, 1000.7, Step(2));
  const EventFile clock_set_back(folder, 12.0, Step(3));
  EXPECT_EQ(event_files(folder), (std::vector{first.path(), second.path(), clock_set_back.path()}));
  EXPECT_EQ(bytes_of_file(first.path()), before);
  EXPECT_EQ(bytes_of_file(second.path()), version_event(1000.7) + restart_event(1000.7, Step(2)));
}

// Event files are not written through a link.
TEST(EventFile, IsNotWrittenThroughALink) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.file("elsewhere"));
  fs::create_directory_symlink(directory.file("elsewhere"), directory.file("tensorboard"));
  EXPECT_THROW(EventFile(directory.file("tensorboard"), 1.0, Step(1)), IoError);
  EXPECT_TRUE(fs::is_empty(directory.file("elsewhere")));
}

// Goal: values that a full disk refused are written later, and no torn record stays.
TEST(EventFile, WhatAFullDiskRefusedIsWrittenLater) {
  const TemporaryDirectory directory;
  EventFile events(directory.file("tensorboard"), 1.0, Step(1));
  const std::string begun = bytes_of_file(events.path());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{.rlim_cur = begun.size() + 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  events.add(2.0, Step(1), {{"train/loss", 2.0}});
  const std::string while_full = bytes_of_file(events.path());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(while_full, begun);
  events.add(3.0, Step(2), {{"train/loss", 1.0}});
  EXPECT_EQ(bytes_of_file(events.path()), begun +
                                              scalar_event(2.0, Step(1), {{"train/loss", 2.0}}) +
                                              scalar_event(3.0, Step(2), {{"train/loss", 1.0}}));
}

// Goal: step and evaluation lines become events under the documented tags, with memory and stalls.
TEST(EventFile, MetricsAreCopiedUnderDocumentedTags) {
  const TemporaryDirectory directory;
  MetricsFile metrics = MetricsFile::begin(directory.file("metrics.jsonl"));
  metrics.copy_to_events(directory.file("tensorboard"), Step(1));
  metrics.write(StartRecord{});
  metrics.write(StepRecord{.step = Step(1), .loss = 2.0, .stall_seconds = {{"h2d", 0.5}}});
  metrics.write(EvalRecord{.step = Step(1), .loss = 3.0});
  metrics.write(EndRecord{});
  const std::vector<std::string> files = event_files(directory.file("tensorboard"));
  ASSERT_EQ(files.size(), 1U);
  const std::vector<std::string> records = records_of(bytes_of_file(files[0]));
  ASSERT_EQ(records.size(), 4U);  // version, restart, step, evaluation
  for (const char* tag :
       {"train/loss", "train/lr", "train/grad_norm", "train/clip_scale", "train/epoch",
        "train/skipped_total", "speed/tokens_per_second", "speed/step_seconds", "stall_seconds/h2d",
        "memory_bytes/device_peak", "memory_bytes/device_plan", "memory_bytes/device_tensors",
        "memory_bytes/host_pinned", "memory_bytes/host_rss"}) {
    EXPECT_NE(records[2].find(tag), std::string::npos) << tag;
  }
  for (const char* tag : {"eval/loss", "eval/perplexity"}) {
    EXPECT_NE(records[3].find(tag), std::string::npos) << tag;
  }
}

}  // namespace
}  // namespace longshore
