// HurriedStop. Goal: a signal ends work that never checks for one, in order and with a message.
#include "trainer/run/signal_flag.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace longshore {
namespace {

// Works forever without checking for signals, like a library inside a long text.
[[noreturn]] void work_for_ever() {
  for (;;) ::pause();
}

// A stop signal ends work that never checks for it.
TEST(HurriedStop, EndsWorkThatAsksForNothing) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    EXPECT_EXIT(
        {
          const SignalFlag flag("", Announce::kYes);
          const HurriedStop hurried(flag);
          ::kill(::getpid(), signal);
          work_for_ever();
        },
        testing::ExitedWithCode(128 + signal),
        "stopping: prepared data is kept\nstopped by a signal; the same command resumes from");
  }
}

// After the work ended, signals have their usual handlers and messages again.
TEST(HurriedStop, LeavesAloneWhatComesLater) {
  testing::internal::CaptureStderr();
  {
    const SignalFlag flag("", Announce::kYes);
    {
      const HurriedStop hurried(flag);
    }
    ::kill(::getpid(), SIGTERM);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("then the run is saved"), std::string::npos) << text;
  EXPECT_EQ(text.find("resumes from here"), std::string::npos) << text;
}

}  // namespace
}  // namespace longshore
