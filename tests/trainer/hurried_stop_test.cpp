// HurriedStop. Goal: work that asks for nothing ends all the same, in order, and says so.
#include "trainer/run/hurried_stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/trainer/temporary_directory.h"
#include "trainer/directory/run_directory.h"

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
        "stopping: what is prepared is kept\nstopped by a signal; the same command goes on from");
  }
}

// run.json of a run that is cut off says neither that it runs nor another step.
TEST(HurriedStop, LetsTheOwnerSayWhy) {
  const TemporaryDirectory place;
  RunStatus running;
  running.step = Step(7);
  running.saved_step = Step(5);
  RunDirectory::open(place.path()).write_status(running);
  EXPECT_EXIT(
      {
        const RunDirectory directory = RunDirectory::open(place.path());
        const SignalFlag flag;
        const HurriedStop hurried(
            flag, [&] { directory.note_stopped(flag.stop_exit_code(), flag.stop_text()); });
        ::kill(::getpid(), SIGTERM);
        work_for_ever();
      },
      testing::ExitedWithCode(128 + SIGTERM), "");
  const Json status = read_json_file(place.path() + "/run.json", JsonLimits{});
  EXPECT_EQ(status.at("status"), "stopped");
  EXPECT_EQ(status.at("exit_code"), 128 + SIGTERM);
  EXPECT_EQ(status.at("message"), "stopped by SIGTERM");
  EXPECT_EQ(status.at("step"), 7);
  EXPECT_EQ(status.at("saved_step"), 5);
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
  EXPECT_EQ(text.find("goes on from here"), std::string::npos) << text;
}

}  // namespace
}  // namespace longshore
