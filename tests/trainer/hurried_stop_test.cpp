// HurriedStop. Goal: work that asks for nothing ends all the same, in order, and says so.
#include "trainer/run/hurried_stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace longshore {
namespace {

// As a library in the middle of a long text.
[[noreturn]] void work_for_ever() {
  for (;;) ::pause();
}

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

// Work that ended is not its business any more, and signals have their usual words again.
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
