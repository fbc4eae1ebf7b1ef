// Stranger: a thread of a test that connects to a port of 127.0.0.1 again and again, as a process
// without the secret would. It sends the beginning of a message and keeps the newest connections
// open.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"

namespace longshore {

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
    std::mt19937 random(5);
    std::string noise(3000, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    const std::vector<std::string> words = {
        std::string(1, '\0'),
        "",
        "LShello1",
        "GET / HTTP/1.1\r\n\r\n",
        noise,
        std::string(5000, '\0'),
        std::string("\x09\xce\xf7\x85\x3c\0\0\0\0\0\0\0\x10", 13),
        "\x16\x03\x01\x02",
        "LSh"};
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

}  // namespace longshore
