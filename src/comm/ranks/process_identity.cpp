#include "comm/ranks/process_identity.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/processor.h"
#include "base/random.h"
#include "base/texts.h"
#include "comm/store/store.h"

namespace longshore {
namespace {

// The state and start time of /proc/PID/stat; state is 0 if no such process exists.
struct ProcessStat {
  char state = 0;
  int64_t start_ticks = 0;
};

ProcessStat read_stat(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The name, in parentheses, may itself contain ')', so the search is from the end.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(name_end + 1));
  ProcessStat stat;
  rest >> stat.state;
  std::string skipped;
  // Skips fields 4 to 21 and reads the 22nd.
  for (int field = 4; field < 22; ++field) rest >> skipped;
  rest >> stat.start_ticks;
  return stat;
}

std::string read_pid_space() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(boot, text);
  std::array<char, 128> link{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", link.data(), link.size());
  if (length <= 0 || text.empty()) return "";
  return text + "/" + std::string(link.data(), static_cast<size_t>(length));
}

std::string numeric_address(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int failed = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text.data(),
                                   text.size(), nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? text.data() : "";
}

// Asks the kernel which of its addresses this host would use to reach the store; sends nothing.
bool find_addresses(const StoreAddress& store, int family, ProcessIdentity& identity) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(store.host.c_str(), std::to_string(store.port).c_str(), &hints, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const UniqueFd socket(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), store.text());
    if (!socket.valid()) continue;
    if (::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t own_length = sizeof own;
    socklen_t peer_length = sizeof peer;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
        ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) {
      continue;
    }
    identity.address = numeric_address(own, own_length);
    identity.store_address = numeric_address(peer, peer_length);
    return !identity.address.empty();
  }
  return false;
}

// Calls use(key, field) for each field of the identity.
template <typename Identity, typename Use>
void for_each_field(Identity& identity, const Use& use) {
  use("host", identity.host);
  use("pid", identity.pid);
  use("start", identity.start_ticks);
  use("pid_space", identity.pid_space);
  use("address", identity.address);
  use("store_address", identity.store_address);
  use("token", identity.token);
  use("local_rank", identity.local_rank);
  use("local_size", identity.local_size);
  use("node", identity.node);
}

// The maximum length of a printed operation text.
constexpr size_t kMaxText = 1000;

}  // namespace

std::string ProcessIdentity::text() const {
  return "host " + host + ", process " + std::to_string(pid);
}

std::string rank_text(int32_t rank, const ProcessIdentity& identity) {
  return "rank " + std::to_string(rank) + " (" + identity.text() + ")";
}

std::string ProcessIdentity::to_json() const {
  Json object;
  for_each_field(*this, [&](const char* key, const auto& value) { object[key] = value; });
  return object.dump();
}

ProcessIdentity ProcessIdentity::from_json(const std::string& text) {
  try {
    const Json object = parse_json(text, {.max_bytes = 64 * kKiB, .max_depth = 2}, "the store");
    ProcessIdentity identity;
    for_each_field(identity, [&](const char* key, auto& value) { object.at(key).get_to(value); });
    // The host is untrusted text that is printed, so it is escaped.
    identity.host = printable(identity.host);
    return identity;
  } catch (const std::exception& error) {
    throw StoreError(std::string("a rank's identity cannot be read: ") + error.what());
  }
}

ProcessIdentity identify_process(const StoreAddress& store) {
  ProcessIdentity identity;
  identity.host = host_name();
  identity.pid = ::getpid();
  identity.start_ticks = read_stat(identity.pid).start_ticks;
  identity.pid_space = read_pid_space();
  identity.token = hash_text(random_word());
  // IPv4 comes first if the name has both, because all ranks must choose the same.
  if (!find_addresses(store, AF_INET, identity) && !find_addresses(store, AF_UNSPEC, identity)) {
    throw ConfigError("the store's host " + store.host +
                      " cannot be resolved or reached; check MASTER_ADDR or --rendezvous");
  }
  return identity;
}

bool process_is_gone(const ProcessIdentity& process, const ProcessIdentity& self) {
  if (process.pid_space.empty() || process.pid_space != self.pid_space) return false;
  const ProcessStat stat = read_stat(process.pid);
  // A process that its parent has not waited for yet is a zombie.
  return stat.state == 0 || stat.state == 'Z' || stat.state == 'X' ||
         stat.start_ticks != process.start_ticks;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

std::string RankHeartbeat::to_json() const {
  Json object = {{"number", number}, {"leaving", leaving}, {"knows_failure", knows_failure}};
  object["groups"] = Json::object();
  for (const auto& [key, group] : groups) {
    object["groups"][key] = {
        {"running", group.running}, {"finished", group.finished}, {"text", group.text}};
  }
  return object.dump();
}

RankHeartbeat RankHeartbeat::from_json(const std::string& text) {
  try {
    const Json object =
        parse_json(text, {.max_bytes = kMiB, .max_depth = 4, .max_values = 10'000}, "the store");
    RankHeartbeat heartbeat;
    heartbeat.number = object.at("number").get<int64_t>();
    heartbeat.leaving = object.at("leaving").get<bool>();
    heartbeat.knows_failure = object.at("knows_failure").get<bool>();
    for (const auto& [key, group] : object.at("groups").items()) {
      heartbeat.groups[key] = {.running = group.at("running").get<int64_t>(),
                               .finished = group.at("finished").get<bool>(),
                               .text = printable(group.at("text").get<std::string>(), kMaxText)};
    }
    return heartbeat;
  } catch (const std::exception& error) {
    throw StoreError(std::string("a rank's heartbeat cannot be read: ") + error.what());
  }
}

}  // namespace longshore
