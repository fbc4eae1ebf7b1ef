#include "comm/store/store_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/mutex.h"
#include "base/processor.h"
#include "comm/store/store_messages.h"
#include "comm/store/store_secret.h"
#include "comm/store/store_table.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

// One turn accepts at most this many connections, and reads at most this many bytes of one.
constexpr int kAcceptsATurn = 64;
constexpr size_t kBytesATurn = 64 * 1024;
// Without free descriptors the listener pauses this long, so that the thread does not spin.
constexpr std::chrono::milliseconds kRest(100);
constexpr uint64_t kWakeId = 0, kListenerId = 1, kFirstConnectionId = 2;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

SocketAddress socket_address(const std::string& address, uint16_t port) {
  SocketAddress made;
  auto* four = reinterpret_cast<sockaddr_in*>(&made.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&made.storage);
  if (::inet_pton(AF_INET, address.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    made.length = sizeof *four;
  } else if (::inet_pton(AF_INET6, address.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    made.length = sizeof *six;
  }
  LONGSHORE_CHECK(made.length > 0) << address;
  return made;
}

// Returns errno if this host lacks the address family or the port is taken; 0 on success.
int try_to_listen(const std::string& address, uint16_t port, UniqueFd& listener) {
  const SocketAddress at = socket_address(address, port);
  UniqueFd socket(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
                  "the store");
  if (!socket.valid()) return errno;
  const int on = 1, off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (at.storage.ss_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return errno;
  }
  listener = std::move(socket);
  return 0;
}

UniqueFd listen_at(const StoreServerOptions& options) {
  UniqueFd listener;
  int failed = 0;
  if (options.address.empty()) {
    failed = try_to_listen("::", options.port, listener);
    if (failed != 0 && failed != EADDRINUSE)
      failed = try_to_listen("0.0.0.0", options.port, listener);
  } else {
    failed = try_to_listen(options.address, options.port, listener);
  }
  if (failed == 0) return listener;
  throw ConfigError("cannot serve the store on port " + std::to_string(options.port) + ": " +
                    std::strerror(failed) + "; another run may be using the port: choose another " +
                    "with MASTER_PORT or --rendezvous");
}

struct Connection {
  UniqueFd fd;
  bool client = false;  // it has proved the secret
  StoreNonce nonce{};   // the challenge that this server sent
  Clock::time_point accepted = Clock::now();
  std::string input;   // received bytes that are not parsed yet
  std::string output;  // reply that the client has not taken yet
  size_t sent = 0;     // bytes of `output` sent so far

  Bytes under_way() const { return static_cast<Bytes>(input.size() + output.size()); }
};

}  // namespace

class StoreServer::Loop {
 public:
  explicit Loop(const StoreServerOptions& options)
      : options_(options),
        table_(options.limits.keys, options.limits.stored),
        listener_(listen_at(options)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"),
        epoll_(::epoll_create1(EPOLL_CLOEXEC), "epoll") {
    if (!wake_.valid() || !epoll_.valid()) throw IoError("make", "an event loop", errno);
    watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWakeId);
    watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerId);
    thread_ = std::thread([this] { run(); });
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() {
    const uint64_t one = 1;
    // The first write to an eventfd always succeeds.
    [[maybe_unused]] const ssize_t wrote = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  uint16_t port() const {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
      throw IoError("getsockname", "the store", errno);
    }
    return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  }

  StoreUse most_used() const {
    const MutexLock lock(mutex_);
    return most_;
  }

 private:
  void run() {
    ask_for_short_slices();
    for (;;) {
      std::array<epoll_event, 64> events{};
      const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms());
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<size_t>(i)];
        if (event.data.u64 == kWakeId) return;
        if (event.data.u64 == kListenerId) {
          accept_some();
        } else {
          serve(event.data.u64);
        }
      }
      expire_strangers();
      wake_listener();
      note_use();
    }
  }

  // Returns the time until the oldest unauthenticated connection expires or the listener resumes;
  // -1 if neither is pending.
  int wait_ms() const {
    std::optional<Clock::time_point> next = rest_until_;
    if (!strangers_.empty()) {
      const auto end = connections_.at(*strangers_.begin()).accepted + options_.limits.hello_time;
      next = next ? std::min(*next, end) : end;
    }
    if (!next) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }

  void watch(int operation, int fd, uint32_t events, uint64_t id) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
      throw IoError("epoll_ctl", "the store", errno);
    }
  }

  // ---- Opening and closing connections ----

  void accept_some() {
    for (int i = 0; i < kAcceptsATurn; ++i) {
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC),
                  "a client of the store");
      if (!fd.valid()) {
        const int failed = errno;
        if (failed == EAGAIN) return;
        // Other errors mean that the client closed the connection before it was accepted.
        if (failed != EMFILE && failed != ENFILE && failed != ENOMEM && failed != ENOBUFS) continue;
        if (!strangers_.empty()) {
          close_connection(*strangers_.begin());
          continue;
        }
        watch(EPOLL_CTL_MOD, listener_.get(), 0, kListenerId);
        rest_until_ = Clock::now() + kRest;
        return;
      }
      if (strangers_.size() >= options_.limits.strangers) close_connection(*strangers_.begin());
      try {
        greet(std::move(fd));
      } catch (const std::exception&) {
        // Out of memory, or the event loop is full: this connection is dropped.
      }
    }
  }

  // The challenge always fits into the send buffer of a new socket.
  void greet(UniqueFd fd) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    const StoreNonce nonce = make_store_nonce();
    std::string challenge(kStoreChallengeMagic);
    challenge.append(nonce.data(), nonce.size());
    if (::send(fd.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(challenge.size())) {
      return;
    }
    const uint64_t id = next_id_++;
    watch(EPOLL_CTL_ADD, fd.get(), EPOLLIN, id);
    Connection& connection = connections_[id];
    connection.fd = std::move(fd);
    connection.nonce = nonce;
    strangers_.insert(id);
  }

  void close_connection(uint64_t id) {
    const auto place = connections_.find(id);
    if (place == connections_.end()) return;
    under_way_ -= place->second.under_way();
    if (place->second.client) --clients_;
    strangers_.erase(id);
    connections_.erase(place);
  }

  void expire_strangers() {
    const Clock::time_point now = Clock::now();
    // Ids ascend in order of arrival, so the oldest comes first.
    while (!strangers_.empty() &&
           now - connections_.at(*strangers_.begin()).accepted >= options_.limits.hello_time) {
      close_connection(*strangers_.begin());
    }
  }

  void wake_listener() {
    if (!rest_until_ || Clock::now() < *rest_until_) return;
    rest_until_.reset();
    watch(EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListenerId);
  }

  // ---- Messages ----

  void serve(uint64_t id) {
    const auto place = connections_.find(id);
    if (place == connections_.end()) return;  // closed in this turn
    bool stays = false;
    try {
      stays = serve_connection(id, place->second);
    } catch (const std::exception&) {
      // Out of memory for this client's messages: only this client is dropped.
    }
    if (!stays) close_connection(id);
    while (under_way_ > options_.limits.under_way) close_the_largest();
  }

  // Returns false if the connection must be closed.
  bool serve_connection(uint64_t id, Connection& connection) {
    if (!connection.output.empty()) {
      if (!send_some(id, connection)) return false;
      // Reading pauses while the client does not take its reply.
      if (!connection.output.empty()) return true;
    } else if (!receive_some(connection)) {
      return false;
    }
    return connection.client ? answer_requests(id, connection) : check_hello(id, connection);
  }

  bool receive_some(Connection& connection) {
    const ssize_t got = ::recv(connection.fd.get(), buffer_.data(),
                               connection.client ? buffer_.size() : kStoreHelloBytes + 1, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.input.append(buffer_.data(), static_cast<size_t>(got));
    under_way_ += got;
    return true;
  }

  bool send_some(uint64_t id, Connection& connection) {
    const ssize_t put = ::send(connection.fd.get(), connection.output.data() + connection.sent,
                               connection.output.size() - connection.sent, MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return false;
    connection.sent += static_cast<size_t>(std::max<ssize_t>(put, 0));
    const bool all = connection.sent == connection.output.size();
    if (all) {
      under_way_ -= static_cast<Bytes>(connection.output.size());
      connection.output = {};
      connection.sent = 0;
    }
    watch(EPOLL_CTL_MOD, connection.fd.get(), all ? EPOLLIN : EPOLLOUT, id);
    return true;
  }

  bool say(uint64_t id, Connection& connection, std::string bytes) {
    under_way_ += static_cast<Bytes>(bytes.size());
    connection.output = std::move(bytes);
    return send_some(id, connection);
  }

  bool check_hello(uint64_t id, Connection& connection) {
    StoreHello hello;
    const Parsed found = parse_hello(connection.input, hello);
    if (found != Parsed::kDone) return found == Parsed::kIncomplete;
    const std::string& secret = options_.secret;
    if (clients_ >= options_.limits.clients ||
        !same_proof(hello.proof,
                    prove_secret(secret, StoreSide::kClient, connection.nonce, hello.nonce))) {
      say(id, connection, std::string(kStoreRefusalMagic));
      return false;
    }
    const StoreProof own = prove_secret(secret, StoreSide::kServer, connection.nonce, hello.nonce);
    under_way_ -= static_cast<Bytes>(connection.input.size());
    connection.input.clear();
    connection.client = true;
    strangers_.erase(id);
    ++clients_;
    std::string welcome(kStoreWelcomeMagic);
    welcome.append(own.data(), own.size());
    return say(id, connection, std::move(welcome));
  }

  // Only one reply is pending at a time, so a client that does not read blocks only itself.
  bool answer_requests(uint64_t id, Connection& connection) {
    size_t read = 0;
    bool stays = true;
    while (stays && connection.output.empty()) {
      StoreRequest request;
      size_t used = 0;
      const Parsed found =
          parse_request(std::string_view(connection.input).substr(read), request, used);
      if (found == Parsed::kBad) return false;
      if (found == Parsed::kIncomplete) break;
      read += used;
      stays = say(id, connection, to_bytes(table_.answer(request)));
    }
    under_way_ -= static_cast<Bytes>(read);
    connection.input.erase(0, read);
    if (connection.input.empty()) connection.input = {};
    return stays;
  }

  void close_the_largest() {
    const auto largest = std::max_element(
        connections_.begin(), connections_.end(),
        [](const auto& a, const auto& b) { return a.second.under_way() < b.second.under_way(); });
    close_connection(largest->first);
  }

  void note_use() {
    const MutexLock lock(mutex_);
    most_.strangers = std::max(most_.strangers, strangers_.size());
    most_.clients = std::max(most_.clients, clients_);
    most_.keys = std::max(most_.keys, table_.keys());
    most_.stored = std::max(most_.stored, table_.bytes());
    most_.under_way = std::max(most_.under_way, under_way_);
  }

  const StoreServerOptions options_;
  StoreTable table_;
  UniqueFd listener_;
  UniqueFd wake_;
  UniqueFd epoll_;
  std::map<uint64_t, Connection> connections_;  // ids ascend and are never reused
  std::set<uint64_t> strangers_;
  size_t clients_ = 0;
  uint64_t next_id_ = kFirstConnectionId;
  Bytes under_way_ = 0;
  std::optional<Clock::time_point> rest_until_;
  std::array<char, kBytesATurn> buffer_{};
  mutable Mutex mutex_;
  StoreUse most_ LONGSHORE_GUARDED_BY(mutex_);
  std::thread thread_;
};

StoreServer::StoreServer(const StoreServerOptions& options)
    : loop_(std::make_unique<Loop>(options)) {}

StoreServer::~StoreServer() = default;

std::string StoreUse::text() const {
  return std::to_string(clients) + " clients, " + std::to_string(keys) + " keys, " +
         std::to_string(stored) + " bytes";
}

uint16_t StoreServer::port() const {
  return loop_->port();
}

StoreUse StoreServer::most_used() const {
  return loop_->most_used();
}

}  // namespace longshore
