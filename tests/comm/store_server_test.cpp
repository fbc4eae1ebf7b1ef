// The store's server and clients over real sockets, beside clients without the secret. In every
// case an honest client is served meanwhile, and the server's memory stays within its limits. Waits
// end at deadlines; no test measures time.
#include "comm/store/store_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "comm/store/store.h"
#include "comm/store/store_messages.h"
#include "comm/store/store_secret.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kSecret = "0123456789abcdef of a test";
constexpr seconds kGuard(120);

UniqueFd raw_socket(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "stranger");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd.reset();
  }
  return fd;
}

// Reads until the connection is closed or `bytes` bytes have arrived.
std::string read_from(const UniqueFd& fd, size_t bytes) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (text.size() < bytes) {
    pollfd poll{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&poll, 1, static_cast<int>(milliseconds(kGuard).count())) <= 0) {
      ADD_FAILURE() << "nothing came, and the connection was left open";
      break;
    }
    const ssize_t got =
        ::recv(fd.get(), buffer.data(), std::min(buffer.size(), bytes - text.size()), 0);
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return text;
}

void send_to(const UniqueFd& fd, const std::string& bytes) {
  // The server may have closed the connection.
  [[maybe_unused]] const ssize_t put =
      ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool is_closed(const UniqueFd& fd) {
  return read_from(fd, 1 << 20).size() < (1u << 20);
}

class StoreServed : public testing::Test {
 protected:
  explicit StoreServed(StoreLimits limits = quick_limits()) : limits_(limits) {}

  // Small limits and short deadlines, so that tests reach them quickly.
  static StoreLimits quick_limits() {
    return {.strangers = 8,
            .hello_time = milliseconds(300),
            .clients = 20,
            .keys = 50,
            .stored = 100 * kKiB,
            .under_way = 40 * kMiB};
  }

  StoreConnection connect(const std::string& secret = kSecret) const {
    return {{"127.0.0.1", server_.port()}, secret, kGuard};
  }

  // Expects that an old client and a new one are served.
  void expect_honest_clients_are_served() {
    const std::string number = std::to_string(++served_);
    honest_.set("honest", number);
    EXPECT_EQ(connect().get({"honest"}).front(), number);
    EXPECT_EQ(honest_.get({"honest"}).front(), number);
  }

  void expect_within_limits() const {
    const StoreUse use = server_.most_used();
    EXPECT_LE(use.strangers, limits_.strangers);
    EXPECT_LE(use.clients, limits_.clients);
    EXPECT_LE(use.keys, limits_.keys);
    EXPECT_LE(use.stored, limits_.stored);
    // One turn of the server reads at most 64 KiB more and makes one reply.
    EXPECT_LE(use.under_way, limits_.under_way);
  }

  // Returns the bare socket of a client that has proved the secret.
  UniqueFd raw_client() const {
    UniqueFd fd = raw_socket(server_.port());
    send_to(fd, to_bytes(hello_for(read_from(fd, kChallengeBytes))));
    EXPECT_EQ(read_from(fd, kStoreMagicBytes + kStoreProofBytes).substr(0, kStoreMagicBytes),
              kStoreWelcomeMagic);
    return fd;
  }

  static constexpr size_t kChallengeBytes = kStoreMagicBytes + kStoreNonceBytes;
  static StoreHello hello_for(const std::string& challenge) {
    StoreNonce nonce{};
    if (challenge.size() != kChallengeBytes) return {};
    std::copy_n(challenge.begin() + kStoreMagicBytes, nonce.size(), nonce.begin());
    StoreHello hello{.nonce = make_store_nonce()};
    hello.proof = prove_secret(kSecret, StoreSide::kClient, nonce, hello.nonce);
    return hello;
  }

  StoreLimits limits_;
  StoreServer server_{{.secret = kSecret, .limits = limits_}};
  StoreConnection honest_ = connect();
  int served_ = 0;
};

// Goal: a stranger is cut off whatever it sends first, and no client waits for it.
TEST_F(StoreServed, StrangersThatSendAnythingAreCutOff) {
  std::mt19937 random(3);
  std::string noise(5000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  const std::string torch_hello("\x09\xce\xf7\x85\x3c\0\0\0\0\0\0\0\x10", 13);  // and 2^60
  for (const std::string& bytes :
       {std::string(1, '\0'), std::string(4, '\0'), std::string(100'000, '\0'),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01\x02\0\x01\0\x01\xfc", 9),
        torch_hello, noise, std::string(kStoreHelloMagic) + std::string(200, 'x'),
        std::string(kStoreHelloMagic), std::string("LShel")}) {
    const UniqueFd stranger = raw_socket(server_.port());
    ASSERT_TRUE(stranger.valid());
    send_to(stranger, bytes);
    expect_honest_clients_are_served();
    // The deadline cuts off a stranger that sends half of a first message.
    EXPECT_TRUE(is_closed(stranger));
  }
  expect_within_limits();
}

// Goal: a first message that arrives byte by byte has the same deadline as one that never arrives.
TEST_F(StoreServed, ASlowDripIsCutOff) {
  const UniqueFd stranger = raw_socket(server_.port());
  const std::string hello = to_bytes(hello_for(read_from(stranger, kChallengeBytes)));
  const auto end = std::chrono::steady_clock::now() + kGuard;
  size_t sent = 0;
  // The first half is sent byte by byte; the last byte is never sent.
  for (; sent + 1 < hello.size() / 2; ++sent) {
    send_to(stranger, hello.substr(sent, 1));
    if (sent % 8 == 0) expect_honest_clients_are_served();
    ASSERT_LT(std::chrono::steady_clock::now(), end);
  }
  EXPECT_TRUE(is_closed(stranger));
  expect_within_limits();
}

// Goal: thousands of silent connections keep no client away, at the start or later, and cost the
// server a fixed number of slots.
TEST_F(StoreServed, ThousandsOfSilentConnectionsKeepNobodyAway) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3000; ++i) {
    UniqueFd fd = raw_socket(server_.port());
    if (fd.valid()) silent.push_back(std::move(fd));
    if (i % 300 == 0) expect_honest_clients_are_served();
  }
  EXPECT_GE(silent.size(), 500u);
  expect_honest_clients_are_served();
  expect_within_limits();
}

// Goal: a proof of another secret, no proof and a replayed proof are refused.
TEST_F(StoreServed, WrongSecretsAndReplaysAreRefused) {
  honest_.set("run file", "lr = 1");
  EXPECT_THROW(connect(""), StoreSecretError);
  EXPECT_THROW(connect(kSecret + "x"), StoreSecretError);
  const UniqueFd first = raw_socket(server_.port());
  const std::string recorded = to_bytes(hello_for(read_from(first, kChallengeBytes)));
  send_to(first, recorded);
  EXPECT_EQ(read_from(first, kStoreMagicBytes), kStoreWelcomeMagic);
  const UniqueFd second = raw_socket(server_.port());
  read_from(second, kChallengeBytes);
  send_to(second, recorded + to_bytes(StoreRequest{StoreCommand::kGet, {"run file"}, "", ""}));
  EXPECT_TRUE(is_closed(second));
  // The proof is replayed alone; the answer is a refusal and nothing else.
  const UniqueFd third = raw_socket(server_.port());
  read_from(third, kChallengeBytes);
  send_to(third, recorded);
  EXPECT_EQ(read_from(third, 1000), kStoreRefusalMagic);
  expect_honest_clients_are_served();
  expect_within_limits();
}

// Goal: requests before the proof get no answer.
TEST_F(StoreServed, NothingIsAnsweredBeforeTheProof) {
  const UniqueFd stranger = raw_socket(server_.port());
  read_from(stranger, kChallengeBytes);
  send_to(stranger, to_bytes(StoreRequest{StoreCommand::kCount, {}, "", ""}));
  EXPECT_EQ(read_from(stranger, 1000), "");
  expect_honest_clients_are_served();
}

// Goal: a client refuses a server that does not know the secret.
TEST_F(StoreServed, AFalseServerIsFoundOut) {
  const StoreServer false_server({.secret = "another secret of 20 bytes"});
  EXPECT_THROW(StoreConnection({"127.0.0.1", false_server.port()}, kSecret, kGuard),
               StoreSecretError);
}

// Goal: a client with the secret cannot harm other clients or the server's memory with half
// messages, endless lengths, or replies that it never reads.
TEST_F(StoreServed, BrokenClientsHarmNobody) {
  std::vector<UniqueFd> broken;
  const std::string set = to_bytes(StoreRequest{StoreCommand::kSet, {"k"}, "", "value"});
  for (const std::string& bytes :
       {set.substr(0, 1), set.substr(0, set.size() - 1), std::string("\xff\xff\xff\xff\x01", 5),
        std::string("\0\0\0\0\0\0\0\x10", 8), std::string(100, '\0')}) {
    broken.push_back(raw_client());
    send_to(broken.back(), bytes);
    expect_honest_clients_are_served();
  }
  // This client asks without end and reads no reply.
  honest_.set("long", std::string(50'000, 'v'));
  broken.push_back(raw_client());
  const std::string get = to_bytes(StoreRequest{StoreCommand::kGet, {"long"}, "", ""});
  for (int i = 0; i < 20'000; ++i) send_to(broken.back(), get);
  expect_honest_clients_are_served();
  expect_within_limits();
}

// Goal: clients that fill the memory with half messages are cut off, the largest first.
TEST_F(StoreServed, HalvesOfLongMessagesAreBounded) {
  const std::string half =
      to_bytes(StoreRequest{StoreCommand::kSet, {"k"}, "", std::string(16 << 20, 'v')})
          .substr(0, 15 << 20);
  std::vector<std::thread> senders;
  for (int i = 0; i < 6; ++i) {
    senders.emplace_back([this, &half] {
      const UniqueFd client = raw_client();
      size_t sent = 0;
      const timeval limit{.tv_sec = 20, .tv_usec = 0};
      ::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      while (sent < half.size()) {
        const ssize_t put =
            ::send(client.get(), half.data() + sent, half.size() - sent, MSG_NOSIGNAL);
        if (put <= 0) return;  // cut off
        sent += static_cast<size_t>(put);
      }
    });
  }
  for (int i = 0; i < 20; ++i) expect_honest_clients_are_served();
  for (std::thread& sender : senders) sender.join();
  expect_honest_clients_are_served();
  expect_within_limits();
}

// Goal: keys and values beyond the limits are refused with a reason, and the connection stays open.
TEST_F(StoreServed, KeysAndBytesAreBounded) {
  StoreConnection client = connect();
  const auto refused = [](const auto& call) {
    try {
      call();
      return std::string("was not refused");
    } catch (const StoreError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(refused([&] { client.set("k", std::string(200 * 1024, 'v')); }).find("too many bytes"),
            std::string::npos);
  EXPECT_NE(refused([&] { client.set("k", std::string(17 << 20, 'v')); }).find("a value of"),
            std::string::npos);
  EXPECT_NE(refused([&] { client.set(std::string(2000, 'k'), "v"); }).find("a key of 2000"),
            std::string::npos);
  expect_honest_clients_are_served();
  std::string words;
  for (int i = 0; i < 60; ++i) {
    words = refused([&] { client.set("key " + std::to_string(i), "v"); });
  }
  EXPECT_NE(words.find("too many keys"), std::string::npos) << words;
  expect_honest_clients_are_served();
  EXPECT_TRUE(client.has({"key 1", "key 2"}));
  expect_within_limits();
}

// Goal: the number of clients is limited; when one leaves, another may connect.
TEST_F(StoreServed, ClientsAreBounded) {
  std::vector<StoreConnection> clients;
  while (clients.size() + 1 < limits_.clients) clients.push_back(connect());
  EXPECT_THROW(connect(), StoreSecretError);
  clients.pop_back();
  const auto end = std::chrono::steady_clock::now() + kGuard;
  for (bool served = false; !served;) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    try {
      connect().set("again", "1");
      served = true;
    } catch (const StoreSecretError&) {
      // The server may not have seen yet that the other client left.
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  expect_within_limits();
}

// Goal: the server ends without waiting for clients, whatever they have sent.
TEST_F(StoreServed, ItsEndWaitsForNobody) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.secret = ""});
  const StoreAddress address{"127.0.0.1", server->port()};
  StoreConnection client(address, "", kGuard);
  const UniqueFd silent = raw_socket(address.port);
  const UniqueFd half = raw_socket(address.port);
  send_to(half, "LShel");
  client.set("k", "v");
  server.reset();
  EXPECT_THROW(client.get({"k"}), StoreError);
  EXPECT_THROW(client.get({"k"}), StoreError);
  EXPECT_TRUE(is_closed(silent));
}

// Goal: a client of a server that does not answer gives up within its time limit.
TEST_F(StoreServed, AClientDoesNotWaitForEver) {
  // The listener accepts connections and never answers.
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "listener");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  EXPECT_THROW(StoreConnection({"127.0.0.1", ntohs(address.sin_port)}, kSecret, milliseconds(300)),
               StoreError);
}

// Goal: a store for one machine listens to loopback only, so other machines cannot reach it.
TEST_F(StoreServed, ListensToLoopbackAlone) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "other address");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_.port());
  // 127.0.0.2 is an address of this host too; a server of all addresses would answer there.
  ASSERT_EQ(::inet_pton(AF_INET, "127.0.0.2", &address.sin_addr), 1);
  EXPECT_NE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  EXPECT_EQ(errno, ECONNREFUSED);
}

// Goal: many keys and long values arrive whole, although the client gets them in pieces.
TEST(StoreConnection, GetsManyKeysAndLongValues) {
  const StoreServer server({});
  StoreConnection client({"127.0.0.1", server.port()}, "", kGuard);
  std::vector<std::string> keys, values;
  for (int i = 0; i < 3000; ++i) {
    keys.push_back("key " + std::to_string(i));
    values.push_back(
        std::string(i % 1500 == 0 ? 9'000'000 : i % 7, static_cast<char>('a' + i % 26)));
    client.set(keys.back(), values.back());
  }
  EXPECT_TRUE(client.has(keys));
  EXPECT_EQ(client.get(keys), values);
  EXPECT_EQ(client.count(), 3000);
  EXPECT_TRUE(client.remove(keys[2999]));
  EXPECT_FALSE(client.has(keys));
  EXPECT_THROW(client.get(keys), StoreError);
}

// Goal: with many clients at once no addition is lost.
TEST(StoreConnection, ManyClientsAtOnce) {
  const StoreServer server({});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      StoreConnection client({"127.0.0.1", server.port()}, "", kGuard);
      for (int n = 0; n < 100; ++n) client.add("sum", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  StoreConnection client({"127.0.0.1", server.port()}, "", kGuard);
  EXPECT_EQ(client.add("sum", 0), 800);
}

}  // namespace
}  // namespace longshore
