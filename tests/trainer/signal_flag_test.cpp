#include "trainer/run/signal_flag.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/errors.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

// Sends a signal to this process; it is handled before kill() returns.
void send(int signal) {
  ASSERT_EQ(::kill(::getpid(), signal), 0);
}

// A new flag is clear.
TEST(SignalFlag, IsClearAtTheStart) {
  SignalFlag flag;
  EXPECT_EQ(flag.stop_signal(), 0);
  EXPECT_FALSE(flag.stop_requested());
  EXPECT_FALSE(flag.take_save_request());
}

// Each stop signal is remembered with its exit code.
TEST(SignalFlag, RemembersEachStopSignalWithItsExitCode) {
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGINT}) {
    SignalFlag flag;
    send(signal);
    EXPECT_TRUE(flag.stop_requested());
    EXPECT_EQ(flag.stop_signal(), signal);
    EXPECT_EQ(flag.stop_exit_code(), 128 + signal);
  }
}

// The first of two stop signals counts.
TEST(SignalFlag, KeepsTheFirstOfTwoStopSignals) {
  SignalFlag flag;
  send(SIGUSR1);
  send(SIGTERM);
  send(SIGINT);
  EXPECT_EQ(flag.stop_signal(), SIGUSR1);
}

// A request to save is taken once.
TEST(SignalFlag, TakesARequestToSaveOnce) {
  SignalFlag flag;
  send(SIGUSR2);
  EXPECT_TRUE(flag.take_save_request());
  EXPECT_FALSE(flag.take_save_request());
  EXPECT_FALSE(flag.stop_requested());
}

// The save file is a request to save and is removed.
TEST(SignalFlag, TakesTheSaveFileAndRemovesIt) {
  const TemporaryDirectory directory;
  SignalFlag flag(directory.file("save"));
  EXPECT_FALSE(flag.take_save_request());
  std::ofstream(directory.file("save")).put('\n');
  EXPECT_TRUE(flag.take_save_request());
  EXPECT_FALSE(std::filesystem::exists(directory.file("save")));
  EXPECT_FALSE(flag.take_save_request());
}

// A save file that cannot be removed is ignored; else the run would save after every step.
TEST(SignalFlag, IgnoresASaveFileThatCannotBeRemoved) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.file("save"));
  SignalFlag flag(directory.file("save"));
  EXPECT_TRUE(flag.take_save_request());
  EXPECT_FALSE(flag.take_save_request());
}

// The second interrupt exits at once.
TEST(SignalFlag, ExitsAtOnceOnTheSecondInterrupt) {
  const pid_t child = ::fork();
  if (child == 0) {
    SignalFlag flag;
    ::kill(::getpid(), SIGINT);
    if (!flag.stop_requested()) ::_exit(1);
    ::kill(::getpid(), SIGINT);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 9) << "not the code of a run that stopped and saved";
}

// Goal: the second interrupt writes the prepared status, so run.json does not say "running".
TEST(SignalFlag, LeavesItsLastWordsOnTheSecondInterrupt) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("run.json");
  std::ofstream(path) << "what stood there before, which is longer";
  const pid_t child = ::fork();
  if (child == 0) {
    SignalFlag flag;
    flag.set_last_words(path, "{\"status\": \"stopped\"}");
    ::kill(::getpid(), SIGINT);
    ::kill(::getpid(), SIGINT);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 9);
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "{\"status\": \"stopped\"}");
}

// Goal: signals that nohup ignores stay ignored, and a lost reader of the output ends nothing.
TEST(SignalFlag, IgnoresALostReaderAndWhatNohupIgnores) {
  struct sigaction ignore{}, before{};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGHUP, &ignore, &before), 0);
  {
    SignalFlag flag;
    send(SIGHUP);
    send(SIGPIPE);
    EXPECT_FALSE(flag.stop_requested());
  }
  ASSERT_EQ(::sigaction(SIGHUP, &before, nullptr), 0);
}

// A stop signal is announced with its effect.
TEST(SignalFlag, SaysWhatAStopSignalSetsOff) {
  testing::internal::CaptureStderr();
  {
    SignalFlag flag("", Announce::kYes);
    send(SIGINT);
    send(SIGTERM);
    EXPECT_EQ(flag.stop_name(), "SIGINT");
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("then the run is saved"), std::string::npos) << text;
  EXPECT_EQ(text.find("stopping"), text.rfind("stopping")) << "said twice: " << text;
}

// The destructor restores the former handlers.
TEST(SignalFlag, PutsTheFormerHandlersBack) {
  struct sigaction before{};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &before), 0);
  {
    SignalFlag flag;
  }
  struct sigaction after{};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &after), 0);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

// Only one flag may exist at a time.
TEST(SignalFlag, IsOneAtATime) {
  SignalFlag flag;
  EXPECT_THROW(SignalFlag second, CheckFailure);
}

}  // namespace
}  // namespace longshore
