// Ranks as real processes with a stranger at the store's port, from before the store is there to
// the end: they meet, compute and end as if nobody else were there, and nothing hangs.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "comm/ranks/launcher.h"
#include "tests/comm/free_fixed_port.h"
#include "tests/comm/rank_process.h"

namespace longshore {
namespace {

// A thread that connects to the port of 127.0.0.1 again and again, sends the beginning of
// something, and keeps the newest connections open.
class Stranger {
 public:
  explicit Stranger(uint16_t port) : thread_([this, port] { run(port); }) {}
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() {
    stop_ = true;
    thread_.join();
  }
  int connections() const { return connections_; }

 private:
  void run(uint16_t port) {
    const std::vector<std::string> words = {
        std::string(1, '\0'),
        "",
        "LShello1",
        "GET / HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02",
        std::string(5000, '\0'),
        std::string("\x09\xce\xf7\x85\x3c\0\0\0\0\0\0\0\x10", 13)};
    std::deque<UniqueFd> open;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; !stop_; ++i) {
      UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "stranger");
      if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        const std::string& word = words[i % words.size()];
        [[maybe_unused]] const ssize_t put =
            ::send(fd.get(), word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        open.push_back(std::move(fd));
        ++connections_;
      }
      if (open.size() > 200) open.pop_front();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::atomic<bool> stop_ = false;
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

// Goal: the launcher serves its ranks and ends, although connections with half messages are open.
TEST(StrangerAtTheStore, TheLauncherServesItsRanksAndEnds) {
  const uint16_t port = free_fixed_port();
  const Stranger stranger(port);
  LaunchOptions options;
  options.ranks = 3;
  options.rendezvous = "127.0.0.1:" + std::to_string(port);
  options.command = {kLaunchedMode, "once"};
  EXPECT_EQ(launch_ranks(options), 0);
  options.command = {kLaunchedMode, "die"};
  EXPECT_EQ(launch_ranks(options), 128 + SIGKILL);
  EXPECT_GT(stranger.connections(), 10);
}

// Goal: the same where rank 0 serves the store, at a port that the stranger waits for.
TEST(StrangerAtTheStore, ARankThatServesEndsWithTheOthers) {
  const uint16_t port = free_fixed_port();
  const Stranger stranger(port);
  std::string directory = testing::TempDir() + "/longshore_stranger_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>(
        RankProcessOptions{.rank = rank,
                           .size = 3,
                           .port = port,
                           .agent_store = false,
                           .timeout_ms = 240'000,
                           .behaviour = "once",
                           .output = directory + "/" + std::to_string(rank)}));
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(300);
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait_for_end(end), 0) << rank->words();
  EXPECT_GT(stranger.connections(), 10);
  remove_tree(directory);
}

}  // namespace
}  // namespace longshore
