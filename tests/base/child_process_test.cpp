// Child processes that end well, fail, die of a signal, hang, or write more output than is kept.
#include "base/child_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace longshore {
namespace {

using std::chrono::milliseconds;

ChildEnd shell(const std::string& script, std::optional<milliseconds> limit = std::nullopt) {
  return run_child({"sh", "-c", script}, limit);
}

// The result holds the exit code and both outputs in the order they were written.
TEST(ChildProcess, GivesTheExitCodeAndBothOutputsInOrder) {
  const ChildEnd good = shell("echo one; echo two >&2; echo three");
  EXPECT_TRUE(good.good());
  EXPECT_EQ(good.output, "one\ntwo\nthree\n");
  const ChildEnd bad = shell("exit 3");
  EXPECT_FALSE(bad.good());
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_EQ(bad.text(), "it ended with exit code 3");
}

// The standard input of a child process is empty.
TEST(ChildProcess, HasNothingToRead) {
  EXPECT_TRUE(shell("! read line").good());
}

// A child is killed once its caller gives up, and not before.
TEST(ChildProcess, IsKilledOnceTheCallerGivesUp) {
  int asked = 0;
  const ChildEnd end =
      run_child({"sh", "-c", "exec sleep 1000"}, {}, {}, [&asked] { return ++asked == 3; });
  EXPECT_FALSE(end.in_time);
  EXPECT_EQ(asked, 3);
}

// A child gets this process's environment, without the variables that are hidden from it.
TEST(ChildProcess, DoesNotGetHiddenVariables) {
  ::setenv("LONGSHORE_TEST_SECRET", "secret", 1);
  const std::vector<std::string> print = {"sh", "-c",
                                          "echo ${LONGSHORE_TEST_SECRET-none} ${PATH:+path}"};
  EXPECT_EQ(run_child(print).output, "secret path\n");
  EXPECT_EQ(run_child(print, {}, {"LONGSHORE_TEST_SECRET"}).output, "none path\n");
  ::unsetenv("LONGSHORE_TEST_SECRET");
}

// A child that a signal killed is reported with the signal's name.
TEST(ChildProcess, NamesTheSignal) {
  const ChildEnd end = shell("kill -SEGV $$");
  EXPECT_FALSE(end.good());
  EXPECT_NE(end.text().find("crashed: Segmentation fault"), std::string::npos) << end.text();
}

// A program that does not exist is reported with the reason.
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

// True once no process has this id; init takes a moment to reap killed processes.
bool is_gone(const std::string& process) {
  for (int i = 0; i < 1000; ++i) {
    if (::kill(std::stoi(process), 0) != 0) return errno == ESRCH;
    std::ifstream file("/proc/" + process + "/stat");
    std::string word;
    if (!(file >> word >> word >> word) || word == "Z") return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

// Goal: the call does not wait for a background process that holds the output open, and kills it.
TEST(ChildProcess, EndsWithTheProgramNotWithItsOutput) {
  const ChildEnd end = shell("sleep 1000 & echo $!");
  EXPECT_TRUE(end.good());
  ASSERT_FALSE(end.output.empty());
  EXPECT_TRUE(is_gone(end.output));
  EXPECT_TRUE(shell("yes & exit 0").good());
}

// Goal: at the limit the child's own children are killed too; the limit grows until both run.
TEST(ChildProcess, GrandchildrenAreKilledAtTheLimit) {
  std::vector<std::string> processes;
  for (milliseconds limit(500); processes.size() < 2 && limit < milliseconds(100'000); limit *= 2) {
    const ChildEnd end = shell("sh -c 'sleep 1000 & echo $!; wait' & echo $!; wait", limit);
    EXPECT_FALSE(end.in_time);
    processes.clear();
    std::istringstream lines(end.output);
    for (std::string line; std::getline(lines, line);) processes.push_back(line);
    for (const std::string& process : processes) EXPECT_TRUE(is_gone(process)) << process;
  }
  EXPECT_EQ(processes.size(), 2u);
}

// Goal: a child ends when its parent ends, because it does not get the terminal's Ctrl-C.
TEST(ChildProcess, EndsWithItsParent) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    run_child({"sh", "-c", "echo $$ > /dev/fd/" + std::to_string(ends[1]) + "; exec sleep 1000"});
    ::_exit(0);
  }
  std::array<char, 32> text{};
  ASSERT_GT(::read(ends[0], text.data(), text.size() - 1), 0);
  EXPECT_EQ(::kill(std::stoi(text.data()), 0), 0);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(is_gone(std::to_string(std::stoi(text.data()))));
  for (const int end : ends) ::close(end);
}

// A long output is cut to its last 8 KiB.
TEST(ChildProcess, KeepsTheEndOfAFlood) {
  const ChildEnd end = shell("yes | head -c 3000000; echo; echo the end");
  EXPECT_TRUE(end.good());
  EXPECT_EQ(end.output.size(), 8192u);
  EXPECT_TRUE(end.output.ends_with("\nthe end\n"));
}

}  // namespace
}  // namespace longshore
