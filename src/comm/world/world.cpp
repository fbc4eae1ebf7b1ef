#include "comm/world/world.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/awake_clock.h"
#include "base/errors.h"
#include "base/measurement.h"
#include "comm/collectives/group_communicator.h"
#include "comm/collectives/nccl_communicator.h"
#include "comm/collectives/transport.h"
#include "comm/operations/communicator.h"
#include "comm/ranks/rendezvous.h"
#include "comm/store/serial_queue.h"
#include "comm/store/store_server.h"
#include "comm/store/torch_store.h"
#include "comm/watchdog/watchdog.h"

namespace longshore {
namespace {

// Removes and returns the next line without its end; empty after the last one.
std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return line;
}

std::string describe_difference(std::string_view first, std::string_view other) {
  for (int64_t number = 1; !first.empty() || !other.empty(); ++number) {
    const std::string_view of_first = take_line(first);
    const std::string_view of_other = take_line(other);
    if (of_first == of_other) continue;
    return "line " + std::to_string(number) + " is \"" + std::string(of_other) + "\" there and \"" +
           std::string(of_first) + "\" on rank 0";
  }
  return "they end differently";
}

// DistributedWorld: the World of several ranks. It owns the store connection, the watchdog and, on
// the rank that serves it, the store. Ownership and threads as for World.

class DistributedWorld : public World {
 public:
  DistributedWorld(const RankInfo& ranks, WorldOptions options);
  // Reports that this rank is done, or that an exception ends it. The rank that serves the store
  // first waits for the other ranks.
  ~DistributedWorld() override;

  const RankInfo& ranks() const override { return ranks_; }
  Communicator& all() override { return *all_; }
  std::unique_ptr<Communicator> group(const std::string& name,
                                      const std::vector<int32_t>& members) override;
  std::unique_ptr<Communicator> host_group(const std::string& name,
                                           const std::vector<int32_t>& members) override;
  std::vector<std::string> exchange(const std::string& what, const std::string& mine) override;
  void report_failure(const std::string& message) noexcept override;
  void check() override;

 private:
  // The data of the store queue's thread. A hung thread keeps it alive.
  struct Shared {
    StoreAddress address;  // address of the run's store
    std::unique_ptr<StoreConnection> store;
    Meeting meeting;
    std::vector<std::string> texts;
  };

  void serve_store(const ProcessIdentity& identity);
  void meet(const ProcessIdentity& identity);
  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           const std::vector<int32_t>& members, bool nccl);
  // Returns the text of the group's first member.
  std::string text_of_first(const std::string& prefix, const std::vector<int32_t>& members,
                            const std::string& mine);
  // Waits for a task of the store queue, which ends by itself within the time-out.
  void wait(SerialQueue::Task& task, const std::string& what);

  RankInfo ranks_;
  const WorldOptions options_;
  StoreAddress address_;  // of torchrun's agent until the ranks have met, then of the run's store
  const int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  SerialQueue store_queue_;
  std::shared_ptr<Watchdog> watchdog_;
  std::unique_ptr<Communicator> all_;
  std::string host_address_;
  int64_t exchanges_ = 0;
  int64_t groups_ = 0;
};

using Clock = AwakeClock;
using std::chrono::milliseconds;

constexpr milliseconds kLook(20);
// Tasks of the store queue end their own waits; past this slack one hangs in a call.
constexpr std::chrono::seconds kSlack(5);
// Communicators' own waits end earlier than Gloo's, and name the culprit.
constexpr std::chrono::seconds kGlooSlack(60);
// The limit of texts that ranks compare or collect: run files, layouts.
constexpr Bytes kMaxText = 4 * kMiB;
constexpr const char* kLoopback = "127.0.0.1";
// The limit for one address from torchrun's agent, which may be that of an earlier start.
constexpr milliseconds kTryTime(2000);

// Connects to the run's store, whose address rank 0 published at torchrun's agent. Any process may
// write there, so an address that fails the handshake is looked up again until the time is over.
std::unique_ptr<StoreConnection> connect_by_agent(const StoreAddress& agent, const RankInfo& ranks,
                                                  StoreAddress& address, milliseconds timeout) {
  const Clock::time_point end = Clock::now() + timeout;
  AgentStore store(agent, timeout);
  const std::string key = store_address_key(ranks);
  if (ranks.rank == 0) {
    store.publish(key, address);
    return std::make_unique<StoreConnection>(address, ranks.secret, timeout);
  }
  for (;;) {
    const bool found = store.find(key, address);
    try {
      if (found) return std::make_unique<StoreConnection>(address, ranks.secret, timeout, kTryTime);
    } catch (const StoreError&) {
      if (Clock::now() > end) throw;
    }
    if (Clock::now() > end) {
      throw StoreError("rank 0 has not published the address of the run's store");
    }
    std::this_thread::sleep_for(kLook);
  }
}

// Waits for all keys until `end`; returns the indices of the missing ones.
std::vector<size_t> wait_for_keys(StoreConnection& store, const std::vector<std::string>& keys,
                                  Clock::time_point end, const Watchdog& watchdog) {
  milliseconds pause(1);
  while (!store.has(keys) && Clock::now() < end && !watchdog.has_failure()) {
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(50));
  }
  std::vector<size_t> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!store.has({keys[i]})) missing.push_back(i);
  }
  return missing;
}

std::string list_of(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

DistributedWorld::DistributedWorld(const RankInfo& ranks, WorldOptions options)
    : ranks_(ranks), options_(std::move(options)), address_{ranks.store_host, ranks.store_port} {
  ProcessIdentity identity = identify_process(address_);
  identity.local_rank = ranks_.local_rank;
  identity.local_size = ranks_.local_size;
  identity.node = ranks_.node;
  if (ranks_.rank == 0 && !ranks_.agent_store) serve_store(identity);
  meet(identity);
  const std::vector<ProcessIdentity>& identities = shared_->meeting.identities;
  host_address_ = address_for_others(identities, ranks_.rank);
  count_nodes(identities, ranks_);
  watchdog_ = Watchdog::start({.rank = ranks_.rank,
                               .identities = identities,
                               .store = address_,
                               .secret = ranks_.secret,
                               .prefix = shared_->meeting.prefix,
                               .store_on_rank_0 = !ranks_.agent_store,
                               .timeout = options_.timeout,
                               .heartbeat = options_.heartbeat,
                               .grace = options_.grace,
                               .before_exit = options_.before_exit});
  try {
    std::vector<int32_t> everyone(static_cast<size_t>(ranks_.size));
    std::iota(everyone.begin(), everyone.end(), 0);
    all_ = host_group("world", everyone);
  } catch (...) {
    watchdog_->stop();
    throw;
  }
}

DistributedWorld::~DistributedWorld() {
  if (!watchdog_->has_failure() && std::uncaught_exceptions() > exceptions_) {
    report_failure("it ended with an error");
  }
  if (!watchdog_->has_failure()) watchdog_->leave();
  all_.reset();
  watchdog_->stop();
}

// The store listens on loopback only if all ranks are on this machine.
void DistributedWorld::serve_store(const ProcessIdentity& identity) {
  StoreServerOptions serving{.port = ranks_.store_port, .address = "", .secret = ranks_.secret};
  if (ranks_.torch_agent) {
    serving.port = 0;
    const bool one_machine = ranks_.local_size == ranks_.size;
    if (one_machine) serving.address = kLoopback;
    server_ = std::make_unique<StoreServer>(serving);
    // If the agent is on loopback, this is its machine, and other ranks know its host name.
    const std::string host = is_loopback(identity.address) ? ranks_.store_host : identity.address;
    shared_->address = {one_machine ? kLoopback : host, server_->port()};
    return;
  }
  if (is_loopback(ranks_.store_host)) {
    serving.address = ranks_.store_host == "localhost" ? kLoopback : ranks_.store_host;
  }
  server_ = std::make_unique<StoreServer>(serving);
}

void DistributedWorld::meet(const ProcessIdentity& identity) {
  if (!ranks_.torch_agent) shared_->address = address_;
  const auto task = store_queue_.push(
      [shared = shared_, ranks = ranks_, agent = address_, timeout = options_.timeout, identity] {
        if (ranks.torch_agent) {
          shared->store = connect_by_agent(agent, ranks, shared->address, timeout);
        } else {
          shared->store = std::make_unique<StoreConnection>(shared->address, ranks.secret, timeout);
        }
        shared->meeting = meet_all_ranks(*shared->store, ranks, identity, timeout);
      });
  // Connecting and meeting may each take the whole time-out.
  const bool done = task->wait_for(options_.timeout * 2 + kSlack);
  if (!done) store_queue_.abandon();
  const std::string store = "the store at " + address_.text();
  if (!done) throw CommError(store + " does not answer");
  try {
    if (task->error()) std::rethrow_exception(task->error());
  } catch (const StoreSecretError& error) {
    throw CommError(store + " does not belong to this run: " + error.what() +
                    "; ranks need the same dist.secret_file, or longshore launch's own variables");
  } catch (const StoreError& error) {
    throw CommError(store + " cannot be reached (" + error.what() +
                    "): rank 0, or the launcher that serves it, is not running");
  }
  address_ = shared_->address;
  ranks_.store_host = address_.host;
  ranks_.store_port = address_.port;
}

void DistributedWorld::wait(SerialQueue::Task& task, const std::string& what) {
  const Clock::time_point begin = Clock::now();
  const auto waited = [&] { return seconds_text(seconds_since(begin)) + " for " + what; };
  while (!task.wait_for(kLook)) {
    if (Clock::now() - begin > options_.timeout + kSlack) {
      watchdog_->offer(
          {ranks_.agent_store ? -1 : 0, "the store at " + address_.text() + " does not answer"});
    }
    if (watchdog_->has_failure() && !task.wait_for(kSlack / 5)) {
      store_queue_.abandon();
      throw CommError(watchdog_->message(waited()));
    }
  }
  try {
    if (task.error()) std::rethrow_exception(task.error());
  } catch (const StoreError& error) {
    // The watchdog has lost the store too and soon names the cause.
    for (int i = 0; i < 100 && !watchdog_->has_failure(); ++i) {
      std::this_thread::sleep_for(kLook);
    }
    if (!watchdog_->has_failure()) {
      watchdog_->offer({-1, "the store at " + address_.text() + " failed: " + error.what()});
    }
  }
  if (watchdog_->has_failure()) throw CommError(watchdog_->message(waited()));
}

std::unique_ptr<Communicator> DistributedWorld::group(const std::string& name,
                                                      const std::vector<int32_t>& members) {
  const bool device_buffers = options_.device == DeviceKind::kCuda;
  const bool nccl = options_.backend == CommBackend::kNccl ||
                    (options_.backend == CommBackend::kAuto && device_buffers);
  LONGSHORE_CHECK(nccl == device_buffers || members.size() <= 1)
      << "NCCL is for buffers of a GPU, Gloo for the host's";
  return make_group(name, members, nccl);
}

std::unique_ptr<Communicator> DistributedWorld::host_group(const std::string& name,
                                                           const std::vector<int32_t>& members) {
  return make_group(name, members, /*nccl=*/false);
}

std::unique_ptr<Communicator> DistributedWorld::make_group(const std::string& name,
                                                           const std::vector<int32_t>& members,
                                                           bool nccl) {
  // Every rank counts all groups, also groups of one, so that a name may be reused.
  ++groups_;
  LONGSHORE_CHECK(!members.empty()) << name;
  for (const int32_t rank : members) LONGSHORE_CHECK(rank >= 0 && rank < ranks_.size) << rank;
  if (members.size() == 1) {
    LONGSHORE_CHECK(members[0] == ranks_.rank) << name;
    return std::make_unique<SoloCommunicator>(name);
  }
  const auto place = std::find(members.begin(), members.end(), ranks_.rank);
  const std::string prefix = shared_->meeting.prefix + "group/" + std::to_string(groups_) + "/" +
                             name + "/" + std::to_string(members[0]);
  const GroupOptions options{name, members, ranks_.rank, options_.timeout};
  if (nccl) {
    const ShareFirst share = [&](const std::string& mine) {
      return text_of_first(prefix, members, mine);
    };
    return make_nccl_communicator(options, watchdog_, share, gpu_of(ranks_, options_.visible_gpus));
  }
  const GlooOptions gloo{.prefix = prefix,
                         .index = static_cast<int32_t>(place - members.begin()),
                         .size = static_cast<int32_t>(members.size()),
                         .address = host_address_,
                         .timeout = options_.timeout + kGlooSlack};
  return std::make_unique<GroupCommunicator>(
      options, watchdog_, [shared = shared_, gloo] { return connect_gloo(*shared->store, gloo); });
}

std::vector<std::string> DistributedWorld::exchange(const std::string& what,
                                                    const std::string& mine) {
  LONGSHORE_CHECK(static_cast<Bytes>(mine.size()) <= kMaxText) << what << ": " << mine.size();
  const auto prefix_of = [this](int64_t number) {
    return shared_->meeting.prefix + "exchange/" + std::to_string(number) + "/";
  };
  const std::string former =
      exchanges_ == 0 ? "" : prefix_of(exchanges_) + std::to_string(ranks_.rank);
  const std::string prefix = prefix_of(++exchanges_);
  auto missing = std::make_shared<std::vector<size_t>>();
  const auto task =
      store_queue_.push([shared = shared_, watchdog = watchdog_, prefix, former, mine, missing,
                         rank = ranks_.rank, size = ranks_.size, timeout = options_.timeout] {
        shared->store->set(prefix + std::to_string(rank), mine);
        std::vector<std::string> keys;
        for (int32_t i = 0; i < size; ++i) keys.push_back(prefix + std::to_string(i));
        *missing = wait_for_keys(*shared->store, keys, Clock::now() + timeout, *watchdog);
        if (!missing->empty()) return;
        shared->texts = shared->store->get(keys);
        // This exchange is complete, so every rank has read the previous one.
        if (!former.empty()) shared->store->remove(former);
      });
  wait(*task, what + " of all ranks");
  if (!missing->empty()) {
    const auto culprit = static_cast<int32_t>(missing->front());
    watchdog_->offer({culprit, list_of(*missing) + " did not give " + what +
                                   " within dist.timeout, " +
                                   std::to_string(options_.timeout.count() / 1000) + " s"});
    throw CommError(watchdog_->message());
  }
  LONGSHORE_CHECK(shared_->texts.size() == static_cast<size_t>(ranks_.size));
  return std::move(shared_->texts);
}

std::string DistributedWorld::text_of_first(const std::string& prefix,
                                            const std::vector<int32_t>& members,
                                            const std::string& mine) {
  auto text = std::make_shared<std::string>();
  const bool first = members[0] == ranks_.rank;
  const auto task = store_queue_.push([shared = shared_, watchdog = watchdog_, first, mine, text,
                                       key = prefix + "/first", timeout = options_.timeout] {
    if (first) shared->store->set(key, mine);
    const auto missing = wait_for_keys(*shared->store, {key}, Clock::now() + timeout, *watchdog);
    if (missing.empty()) *text = shared->store->get({key}).at(0);
  });
  wait(*task, "rank " + std::to_string(members[0]) + " to start a group");
  if (text->empty()) {
    watchdog_->offer({members[0], "rank " + std::to_string(members[0]) +
                                      " did not start a group within dist.timeout"});
    throw CommError(watchdog_->message());
  }
  return *text;
}

void DistributedWorld::report_failure(const std::string& message) noexcept {
  try {
    watchdog_->offer(
        {ranks_.rank, "rank " + std::to_string(ranks_.rank) + " (" +
                          shared_->meeting.identities[static_cast<size_t>(ranks_.rank)].text() +
                          ") failed: " + message});
  } catch (...) {
    // Out of memory: the other ranks notice that this process ends.
  }
}

void DistributedWorld::check() {
  if (watchdog_->has_failure()) throw CommError(watchdog_->message());
}

// ---- World and SoloWorld ----

std::unique_ptr<World> World::connect(const RankInfo& ranks, const WorldOptions& options) {
  if (ranks.size == 1) return std::make_unique<SoloWorld>(ranks);
  return std::make_unique<DistributedWorld>(ranks, options);
}

void World::agree(const std::string& what, const std::string& text) {
  const std::vector<std::string> texts = exchange(what, text);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError("rank " + std::to_string(rank) + " differs from rank 0 in " + what + ": " +
                      describe_difference(texts[0], texts[rank]) +
                      "; start all ranks with the same files and arguments");
  }
}

SoloWorld::SoloWorld(const RankInfo& ranks) : ranks_(ranks), all_("world") {
  LONGSHORE_CHECK(ranks.size == 1 && ranks.rank == 0) << ranks.text();
  ranks_.local_size = 1;
  ranks_.nodes = 1;
}

std::unique_ptr<Communicator> SoloWorld::group(const std::string& name,
                                               const std::vector<int32_t>& members) {
  LONGSHORE_CHECK(members == std::vector<int32_t>{0}) << "group " << name << " of one rank";
  return std::make_unique<SoloCommunicator>(name);
}

std::vector<std::string> SoloWorld::exchange(const std::string& /*what*/, const std::string& mine) {
  return {mine};
}

void SoloWorld::report_failure(const std::string& /*message*/) noexcept {}

}  // namespace longshore
