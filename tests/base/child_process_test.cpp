// Programs that end well, ill, by a signal, not at all, and with more output than is kept.
#include "base/child_process.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

using std::chrono::milliseconds;

ChildEnd shell(const std::string& script, std::optional<milliseconds> limit = std::nullopt) {
  return run_child({"sh", "-c", script}, limit);
}

TEST(ChildProcess, GivesTheExitCodeAndBothOutputsInOrder) {
  const ChildEnd good = shell("echo one; echo two >&2; echo three");
  EXPECT_TRUE(good.good());
  EXPECT_EQ(good.output, "one\ntwo\nthree\n");
  const ChildEnd bad = shell("exit 3");
  EXPECT_FALSE(bad.good());
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_EQ(bad.text(), "it ended with exit code 3");
}

TEST(ChildProcess, HasNothingToRead) {
  EXPECT_TRUE(shell("! read line").good());
}

TEST(ChildProcess, NamesTheSignal) {
  const ChildEnd end = shell("kill -SEGV $$");
  EXPECT_FALSE(end.good());
  EXPECT_NE(end.text().find("crashed: Segmentation fault"), std::string::npos) << end.text();
}

TEST(ChildProcess, SaysWhyItCouldNotBeStarted) {
  const ChildEnd end = run_child({"/nowhere/program"});
  EXPECT_FALSE(end.good());
  EXPECT_NE(end.text().find("No such file"), std::string::npos) << end.text();
}

// Goal: neither silence, closed output nor output without end keeps the caller beyond the limit.
TEST(ChildProcess, IsKilledAtTheLimit) {
  for (const char* script :
       {"echo a; exec sleep 1000", "exec >&- 2>&-; exec sleep 1000", "exec yes"}) {
    const ChildEnd end = shell(script, milliseconds(300));
    EXPECT_FALSE(end.in_time) << script;
    EXPECT_FALSE(end.good()) << script;
  }
}

// A program of its own that it leaves behind holds its output open: nobody waits for that.
TEST(ChildProcess, EndsWithTheProgramNotWithItsOutput) {
  const ChildEnd end = shell("sleep 1000 & echo $!");
  EXPECT_TRUE(end.good());
  ASSERT_FALSE(end.output.empty());
  EXPECT_TRUE(shell("kill " + end.output).good());
  EXPECT_TRUE(shell("yes & exit 0").good());
}

TEST(ChildProcess, KeepsTheEndOfAFlood) {
  const ChildEnd end = shell("yes | head -c 3000000; echo; echo the end");
  EXPECT_TRUE(end.good());
  EXPECT_EQ(end.output.size(), 8192u);
  EXPECT_TRUE(end.output.ends_with("\nthe end\n"));
}

}  // namespace
}  // namespace longshore
