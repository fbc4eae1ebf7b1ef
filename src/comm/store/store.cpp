#include "comm/store/store.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <utility>

#include "base/awake_clock.h"
#include "base/file.h"
#include "base/mutex.h"
#include "base/texts.h"
#include "comm/store/store_secret.h"

namespace longshore {
namespace {

using Clock = AwakeClock;
using std::chrono::milliseconds;

// A call to a stopped server ends this long after the time-out; the watchdog has named it by then.
constexpr std::chrono::seconds kCallSlack(5);
// The limit for one address to accept the connection and finish the handshake.
constexpr std::chrono::seconds kTryTime(10);
constexpr milliseconds kFirstPause(20);
constexpr milliseconds kLongestPause(500);

std::string errno_text(int number) {
  return std::strerror(number);
}

// Waits until the socket is ready for the events or has failed.
void wait_for(const UniqueFd& socket, short events, Clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
    if (left <= 0) throw StoreError("no answer in time");
    pollfd poll{.fd = socket.get(), .events = events, .revents = 0};
    const int ready = ::poll(&poll, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw StoreError("poll: " + errno_text(errno));
  }
}

void send_all(const UniqueFd& socket, std::string_view bytes, Clock::time_point end) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put >= 0) {
      bytes.remove_prefix(static_cast<size_t>(put));
    } else if (errno == EAGAIN) {
      wait_for(socket, POLLOUT, end);
    } else if (errno != EINTR) {
      throw StoreError("the connection broke: " + errno_text(errno));
    }
  }
}

// Appends between 1 and `most` received bytes.
void receive_some(const UniqueFd& socket, std::string& bytes, size_t most, Clock::time_point end) {
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    const ssize_t got = ::recv(socket.get(), buffer.data(), std::min(most, buffer.size()), 0);
    if (got > 0) {
      bytes.append(buffer.data(), static_cast<size_t>(got));
      return;
    }
    if (got == 0) throw StoreError("the connection was closed");
    if (errno == EAGAIN) {
      wait_for(socket, POLLIN, end);
    } else if (errno != EINTR) {
      throw StoreError("the connection broke: " + errno_text(errno));
    }
  }
}

std::string receive(const UniqueFd& socket, size_t bytes, Clock::time_point end) {
  std::string received;
  while (received.size() < bytes) receive_some(socket, received, bytes - received.size(), end);
  return received;
}

UniqueFd connect_to(const addrinfo& at, Clock::time_point end) {
  UniqueFd socket(::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "store");
  if (!socket.valid()) throw StoreError("socket: " + errno_text(errno));
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (::connect(socket.get(), at.ai_addr, at.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) throw StoreError(errno_text(errno));
  wait_for(socket, POLLOUT, end);
  int failed = 0;
  socklen_t length = sizeof failed;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &length);
  if (failed != 0) throw StoreError(errno_text(failed));
  return socket;
}

// Both sides prove that they know the secret; neither sends it.
void shake_hands(const UniqueFd& socket, const std::string& secret, Clock::time_point end) {
  const std::string challenge = receive(socket, kStoreMagicBytes + kStoreNonceBytes, end);
  if (!challenge.starts_with(kStoreChallengeMagic)) {
    throw StoreError("the server there is not a store of this program");
  }
  StoreNonce server{};
  std::copy_n(challenge.begin() + kStoreMagicBytes, server.size(), server.begin());
  StoreHello hello{.nonce = make_store_nonce()};
  hello.proof = prove_secret(secret, StoreSide::kClient, server, hello.nonce);
  send_all(socket, to_bytes(hello), end);
  const auto magic = receive(socket, kStoreMagicBytes, end);
  if (magic == kStoreRefusalMagic) {
    throw StoreSecretError("it has another secret, or more clients than it takes");
  }
  const std::string proof =
      magic == kStoreWelcomeMagic ? receive(socket, kStoreProofBytes, end) : std::string();
  StoreProof given{};
  std::copy(proof.begin(), proof.end(), given.begin());
  if (proof.empty() ||
      !same_proof(given, prove_secret(secret, StoreSide::kServer, server, hello.nonce))) {
    throw StoreSecretError("it does not know the secret");
  }
}

// Tries all addresses of the host, one after the other.
UniqueFd connect_and_shake_hands(const StoreAddress& address, const std::string& secret,
                                 Clock::time_point end) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0) throw StoreError(::gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  std::string problem = "no address";
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    try {
      UniqueFd socket = connect_to(*at, end);
      shake_hands(socket, secret, end);
      return socket;
    } catch (const StoreSecretError&) {
      throw;
    } catch (const StoreError& error) {
      problem = error.what();
    }
  }
  throw StoreError(problem);
}

}  // namespace

bool parse_store_address(const std::string& text, StoreAddress& address) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const char* end = text.data() + text.size();
  uint16_t port = 0;
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || stopped != end || port == 0) return false;
  address = {text.substr(0, colon), port};
  return true;
}

class StoreConnection::Wire {
 public:
  Wire(const StoreAddress& address, const std::string& secret, milliseconds timeout,
       milliseconds try_time)
      : timeout_(timeout) {
    const Clock::time_point end = Clock::now() + try_time;
    for (milliseconds pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
      try {
        socket_ = connect_and_shake_hands(address, secret, std::min(end, Clock::now() + kTryTime));
        return;
      } catch (const StoreSecretError&) {
        throw;
      } catch (const StoreError&) {
        if (Clock::now() + pause >= end) throw;
      }
      std::this_thread::sleep_for(pause);
    }
  }

  StoreReply call(const StoreRequest& request) {
    const MutexLock lock(mutex_);
    if (!socket_.valid()) throw StoreError("the connection is gone");
    try {
      const Clock::time_point end = Clock::now() + timeout_ + kCallSlack;
      send_all(socket_, to_bytes(request), end);
      return take_reply(end);
    } catch (...) {
      // A late reply to this request would be taken for the reply to the next one.
      socket_.reset();
      throw;
    }
  }

 private:
  StoreReply take_reply(Clock::time_point end) LONGSHORE_REQUIRES(mutex_) {
    std::string bytes;
    for (;;) {
      StoreReply reply;
      size_t used = 0;
      const Parsed found = parse_reply(bytes, reply, used);
      // The server sends nothing after a reply until the next request.
      if (found == Parsed::kBad || (found == Parsed::kDone && used != bytes.size())) {
        throw StoreError("an answer cannot be read");
      }
      if (found == Parsed::kDone) return reply;
      receive_some(socket_, bytes, static_cast<size_t>(kMaxStoreBody), end);
    }
  }

  const milliseconds timeout_;
  Mutex mutex_;
  UniqueFd socket_ LONGSHORE_GUARDED_BY(mutex_);
};

StoreConnection::StoreConnection(const StoreAddress& address, const std::string& secret,
                                 milliseconds timeout, milliseconds try_time)
    : wire_(std::make_shared<Wire>(address, secret, timeout, try_time)) {}

std::vector<std::string> StoreConnection::call(const StoreRequest& request, size_t values) {
  for (const std::string& key : request.keys) {
    if (key.empty() || key.size() > kMaxStoreKey) {
      throw StoreError("a key of " + std::to_string(key.size()) + " bytes");
    }
  }
  if (static_cast<Bytes>(request.value.size() + request.expected.size()) > kMaxStoreValue) {
    throw StoreError("a value of " + std::to_string(request.value.size()) + " bytes");
  }
  StoreReply reply = wire_->call(request);
  if (!reply.done) {
    throw StoreError("it refused: " +
                     printable(reply.values.empty() ? "" : reply.values.front(), 400));
  }
  if (reply.values.size() < values) throw StoreError("an answer without a value");
  return std::move(reply.values);
}

void StoreConnection::set(const std::string& key, const std::string& value) {
  call({.command = StoreCommand::kSet, .keys = {key}, .expected = {}, .value = value}, 0);
}

bool StoreConnection::has(const std::vector<std::string>& keys) {
  for (size_t i = 0; i < keys.size(); i += kMaxStoreKeys) {
    StoreRequest request{.command = StoreCommand::kHas, .keys = {}, .expected = {}, .value = {}};
    const size_t end = std::min(keys.size(), i + kMaxStoreKeys);
    request.keys.assign(keys.begin() + static_cast<std::ptrdiff_t>(i),
                        keys.begin() + static_cast<std::ptrdiff_t>(end));
    if (call(request, 1).front() != "1") return false;
  }
  return true;
}

std::vector<std::string> StoreConnection::get(const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  while (texts.size() < keys.size()) {
    StoreRequest request{.command = StoreCommand::kGet, .keys = {}, .expected = {}, .value = {}};
    const size_t end = std::min(keys.size(), texts.size() + kMaxStoreKeys);
    request.keys.assign(keys.begin() + static_cast<std::ptrdiff_t>(texts.size()),
                        keys.begin() + static_cast<std::ptrdiff_t>(end));
    std::vector<std::string> values = call(request, 1);
    if (values.size() > request.keys.size()) throw StoreError("an answer with too many values");
    for (std::string& value : values) texts.push_back(std::move(value));
  }
  return texts;
}

std::string StoreConnection::compare_set(const std::string& key, const std::string& expected,
                                         const std::string& value) {
  return call({.command = StoreCommand::kCompareSet,
               .keys = {key},
               .expected = expected,
               .value = value},
              1)
      .front();
}

int64_t StoreConnection::add(const std::string& key, int64_t number) {
  const std::string text = call({.command = StoreCommand::kAdd,
                                 .keys = {key},
                                 .expected = {},
                                 .value = std::to_string(number)},
                                1)
                               .front();
  int64_t sum = 0;
  if (!parse_store_number(text, sum)) throw StoreError("an answer that is no number");
  return sum;
}

void StoreConnection::append(const std::string& key, const std::string& value) {
  call({.command = StoreCommand::kAppend, .keys = {key}, .expected = {}, .value = value}, 0);
}

bool StoreConnection::remove(const std::string& key) {
  return call({.command = StoreCommand::kDelete, .keys = {key}, .expected = {}, .value = {}}, 1)
             .front() == "1";
}

int64_t StoreConnection::count() {
  const std::string text =
      call({.command = StoreCommand::kCount, .keys = {}, .expected = {}, .value = {}}, 1).front();
  int64_t count = 0;
  if (!parse_store_number(text, count)) throw StoreError("an answer that is no number");
  return count;
}

}  // namespace longshore
