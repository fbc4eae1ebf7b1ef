// A full disk, simulated by a limit on file size. Goal: exit code and message name the file that
// could not be written and what is saved, and no work is lost for the record of it.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

constexpr rlim_t kLimit = rlim_t{4} << 20;

Arguments base(int steps) {
  return joined(RunDriver::golden_arguments("llama-tied"),
                {"--train.steps=" + std::to_string(steps)});
}

// Makes writes beyond `bytes` of a file fail in the child, as on a full disk. Unless the program
// ignores it, a signal ends it there (ulimit -f).
void limit_files(RunDriver& run, rlim_t bytes) {
  run.before_exec([bytes] {
    ::signal(SIGXFSZ, SIG_DFL);
    const struct rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  });
}

// A checkpoint that does not fit gives exit code 6, and the message says that it is not saved.
TEST(DiskFull, ACheckpointThatDoesNotFitIsACheckpointError) {
  RunDriver run("full-checkpoint");
  limit_files(run, 64 << 10);
  EXPECT_EQ(run.train_ranks(1, joined(base(3), {"--checkpoint.every_steps=2"})), 6) << run.output();
  const std::string output = run.output();
  EXPECT_NE(output.find("the checkpoint of step 2 could not be written"), std::string::npos)
      << output;
  EXPECT_NE(output.find("no checkpoint of it is saved"), std::string::npos) << output;
  const Json status = read_json_file(run.directory() + "/run.json", JsonLimits{});
  EXPECT_EQ(status.at("status"), "failed");
  EXPECT_EQ(status.at("exit_code"), 6);
}

// A record that does not fit stops the run with its work saved.
TEST(DiskFull, ARecordThatDoesNotFitStopsTheRunSaved) {
  RunDriver run("full-record");
  ASSERT_EQ(run.train(base(2)), 0);
  // The record is long already, so only a line or two fit.
  const std::string path = run.directory() + "/metrics.jsonl";
  std::string text;
  {
    std::ifstream file(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const std::string filler = "{\"kind\":\"event\",\"text\":\"" + std::string(2000, 'x') + "\"}\n";
  std::string before;
  while (before.size() + text.size() + filler.size() < kLimit - 200) before += filler;
  std::ofstream(path, std::ios::binary) << before << text;
  limit_files(run, kLimit);
  EXPECT_EQ(run.train_ranks(1, base(400)), 1) << run.output();
  const std::string output = run.output();
  EXPECT_NE(output.find("write " + path), std::string::npos) << output;
  EXPECT_NE(output.find("the run is saved after step"), std::string::npos) << output;
  const Json status = read_json_file(run.directory() + "/run.json", JsonLimits{});
  EXPECT_EQ(status.at("status"), "failed");
  EXPECT_EQ(status.at("saved_step"), status.at("step"));
  EXPECT_LT(status.at("step").get<int64_t>(), 20) << "at once, not at the end";
}

}  // namespace
}  // namespace longshore
