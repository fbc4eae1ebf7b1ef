#include "comm/watchdog/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/texts.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kGuardPeriod(100);
// The time for the store to take a reason; after it a rank adopts its own.
constexpr seconds kOfferTime(2);
// The time for a dead process's last heartbeat to show that it was leaving.
constexpr seconds kGoneTime(2);
// The delay before a lost store means that its server died; the cause may show up first.
constexpr seconds kStoreLostTime(1);
// The time after a failed transfer to see which rank falls silent.
constexpr seconds kBreakTime(8);
constexpr seconds kKnowTime(3);
// The maximum length of a printed reason.
constexpr size_t kMaxCause = 16 * 1024;
// This spans many heartbeats, because a busy machine may delay a thread for a while.
constexpr double kSilentSeconds = 5.0;
// The interval of exchanges while a rank waits for the other ranks' last heartbeats.
constexpr milliseconds kAskPeriod(20);

double seconds_between(AwakeClock::time_point from, AwakeClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string to_json(const FailureReason& reason) {
  return Json{{"culprit", reason.culprit}, {"cause", reason.cause}}.dump();
}

FailureReason reason_from(const std::string& text) {
  try {
    const Json object = parse_json(text, {.max_bytes = kMiB, .max_depth = 2}, "the store");
    // The text of another process is untrusted, so it is escaped to one line.
    return {object.at("culprit").get<int32_t>(),
            printable(object.at("cause").get<std::string>(), kMaxCause)};
  } catch (const std::exception& error) {
    throw StoreError(std::string("the failure reason of the run cannot be read: ") + error.what());
  }
}

}  // namespace

std::shared_ptr<Watchdog> Watchdog::start(WatchdogOptions options) {
  const std::shared_ptr<Watchdog> watchdog(new Watchdog(std::move(options)));
  watchdog->store_thread_ = std::thread([watchdog] { watchdog->run_store_thread(); });
  watchdog->guard_ = std::thread([self = watchdog.get()] { self->run_guard(); });
  return watchdog;
}

Watchdog::Watchdog(WatchdogOptions options)
    : options_(std::move(options)), peers_(options_.identities.size()) {}

void Watchdog::stop() {
  {
    MutexLock lock(mutex_);
    if (failure_) let_others_know(lock);
    closing_ = true;
    changed_.notify_all();
  }
  guard_.join();
  MutexLock lock(mutex_);
  const bool ended = changed_.wait_for(
      lock, kOfferTime, [this]() LONGSHORE_REQUIRES(mutex_) { return store_thread_done_; });
  lock.unlock();
  if (ended) {
    store_thread_.join();
  } else {
    store_thread_.detach();
  }
}

// ---- This rank's progress ----

void Watchdog::join_group(const std::string& key, const std::vector<int32_t>& members) {
  const MutexLock lock(mutex_);
  groups_[key] = members;
  peers_[static_cast<size_t>(options_.rank)].heartbeat.groups[key] = {};
}

void Watchdog::begun(const std::string& key, const Operation& operation) {
  const MutexLock lock(mutex_);
  GroupBeat& group = peers_[static_cast<size_t>(options_.rank)].heartbeat.groups[key];
  group.running = operation.sequence;
  group.finished = false;
  group.text = operation.text();
  last_operation_ = group.text;
}

void Watchdog::finished(const std::string& key, int64_t sequence) {
  const MutexLock lock(mutex_);
  GroupBeat& group = peers_[static_cast<size_t>(options_.rank)].heartbeat.groups[key];
  if (group.running == sequence) group.finished = true;
}

// ---- Failure reasons ----

FailureReason Watchdog::failure() const {
  const MutexLock lock(mutex_);
  LONGSHORE_CHECK(failure_.has_value());
  return *failure_;
}

std::string Watchdog::message(const std::string& waited_for) const {
  const MutexLock lock(mutex_);
  LONGSHORE_CHECK(failure_.has_value());
  std::string text = failure_->cause + "; rank " + std::to_string(options_.rank);
  if (!waited_for.empty()) return text + " waited " + waited_for;
  if (last_operation_.empty()) return text + " was in no operation";
  return text + " was in no operation, its last operation was " + last_operation_;
}

void Watchdog::adopt(const FailureReason& reason) {
  offered_.reset();
  if (failure_) return;
  failure_ = reason;
  failure_time_ = Clock::now();
  has_failure_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Watchdog::propose(const FailureReason& reason) {
  if (failure_) return;
  if (!offered_) {
    offered_ = reason;
    offered_time_ = Clock::now();
    ask_to_talk();
  }
  if (store_lost_ || Clock::now() - offered_time_ > kOfferTime) adopt(FailureReason(*offered_));
}

FailureReason Watchdog::offer(const FailureReason& reason) noexcept {
  MutexLock lock(mutex_);
  propose(reason);
  changed_.wait_for(lock, kOfferTime,
                    [this]() LONGSHORE_REQUIRES(mutex_) { return failure_.has_value(); });
  if (!failure_) adopt(reason);
  return *failure_;
}

double Watchdog::silence_seconds() const {
  const double timeout = std::chrono::duration<double>(options_.timeout).count();
  const double heartbeats = std::chrono::duration<double>(options_.heartbeat).count() * 2;
  return std::max(heartbeats, std::min(kSilentSeconds, timeout / 2));
}

FailureReason Watchdog::blame_store(const std::string& what) const {
  if (!options_.store_on_rank_0) {
    return {-1, "the launcher's store at " + options_.store.text() + " " + what};
  }
  return {0,
          name_of_rank(0) + ", which serves the store at " + options_.store.text() + ", " + what};
}

FailureReason Watchdog::blame_delay(const std::string& key, const Operation& operation,
                                    double waited_seconds) {
  FailureReason found;
  {
    const MutexLock lock(mutex_);
    if (failure_) return *failure_;
    const double silent = seconds_between(store_answered_, Clock::now());
    if (silent > silence_seconds()) {
      found = blame_store("has not answered for " + seconds_text(silent));
    } else {
      found = blame_for_delay(board(), key, operation.sequence, operation.text(), waited_seconds,
                              silence_seconds());
    }
  }
  return offer(found);
}

FailureReason Watchdog::blame_break(int32_t peer, const Operation& operation,
                                    const std::string& reason) {
  const Clock::time_point end = Clock::now() + kBreakTime;
  const bool own = peer == options_.rank;
  FailureReason found{peer, name_of_rank(peer) +
                                (own ? ": it failed in " : ": the connection to it broke in ") +
                                operation.text() + " (" + reason + ")"};
  MutexLock lock(mutex_);
  while (!failure_ && Clock::now() < end) {
    if (peers_[static_cast<size_t>(peer)].heartbeat.leaving) {
      found.cause = name_of_rank(peer) + " left the run before " + operation.text();
      break;
    }
    const Board now = board();
    if (const auto silent = most_silent(now, kSilentSeconds); silent && !store_lost_) {
      const double time = now.ranks[static_cast<size_t>(*silent)].silent_seconds;
      found = {*silent, name_of_rank(*silent) + " is gone: its connection broke and it has been " +
                            "silent for " + seconds_text(time)};
      break;
    }
    changed_.wait_for(lock, milliseconds(50));
  }
  if (failure_) return *failure_;
  lock.unlock();
  return offer(found);
}

// ---- The store thread ----

void Watchdog::run_store_thread() {
  std::string error;
  try {
    StoreConnection store(options_.store, options_.secret, options_.timeout);
    for (;;) {
      talk(store);
      MutexLock lock(mutex_);
      const auto woken = [this]()
                             LONGSHORE_REQUIRES(mutex_) { return closing_ || asked_ > answered_; };
      changed_.wait_for(lock, options_.heartbeat, woken);
      if (closing_) break;
    }
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  const MutexLock lock(mutex_);
  if (!error.empty()) {
    store_lost_ = Clock::now();
    store_error_ = error;
  }
  store_thread_done_ = true;
  changed_.notify_all();
}

std::string Watchdog::heartbeat_to_send() {
  RankHeartbeat& heartbeat = peers_[static_cast<size_t>(options_.rank)].heartbeat;
  ++heartbeat.number;
  heartbeat.knows_failure = failure_.has_value();
  return heartbeat.to_json();
}

void Watchdog::talk(StoreConnection& store) {
  std::string heartbeat;
  std::optional<FailureReason> offered;
  int64_t asked = 0;
  {
    const MutexLock lock(mutex_);
    asked = asked_;
    heartbeat = heartbeat_to_send();
    offered = offered_;
  }
  store.set(key("heartbeat/" + std::to_string(options_.rank)), heartbeat);
  std::optional<FailureReason> known;
  if (offered) {
    known = reason_from(store.set_once(key("verdict"), to_json(*offered)));
  } else if (!has_failure() && store.has({key("verdict")})) {
    known = reason_from(store.get({key("verdict")}).at(0));
  }
  std::vector<std::string> keys;
  for (size_t rank = 0; rank < options_.identities.size(); ++rank) {
    keys.push_back(key("heartbeat/" + std::to_string(rank)));
  }
  const std::vector<std::string> texts = store.get(keys);
  if (texts.size() != keys.size()) throw StoreError("heartbeats are missing");

  const MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (static_cast<int32_t>(rank) == options_.rank) continue;
    RankHeartbeat heard = RankHeartbeat::from_json(texts[rank]);
    if (heard.number == peers_[rank].heartbeat.number) continue;
    peers_[rank].heartbeat = std::move(heard);
    peers_[rank].heard = now;
  }
  store_answered_ = now;
  answered_ = asked;
  if (known) adopt(*known);
  if (!failure_) {
    if (const auto disagreement = find_disagreement(board())) propose(*disagreement);
  }
  changed_.notify_all();
}

// ---- The monitor thread ----

void Watchdog::run_guard() {
  static_assert(kGuardPeriod * 5 <= kAwakeTick);
  std::optional<AwakeClock::Ticking> ticking(std::in_place);
  MutexLock lock(mutex_);
  while (!closing_) {
    changed_.wait_for(lock, kGuardPeriod);
    AwakeClock::tick();
    if (closing_) return;
    if (failure_) {
      if (Clock::now() - *failure_time_ < options_.grace) continue;
      lock.unlock();
      ticking.reset();  // the waits of end_process are this thread's own
      end_process(message());
    }
    if (const auto found = look_around()) propose(*found);
  }
}

std::optional<FailureReason> Watchdog::look_around() {
  const Clock::time_point now = Clock::now();
  if (auto found = look_at_peers(now)) return found;
  return look_at_store(now);
}

std::optional<FailureReason> Watchdog::look_at_peers(Clock::time_point now) {
  const ProcessIdentity& self = options_.identities[static_cast<size_t>(options_.rank)];
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (static_cast<int32_t>(rank) == options_.rank || peer.heartbeat.leaving) continue;
    if (!peer.gone && process_is_gone(options_.identities[rank], self)) {
      peer.gone = now;
      peer.asked_when_gone = ask_to_talk();
    }
    // The last heartbeat may still show that it was leaving; an exchange that began later decides.
    if (peer.gone && (answered_ >= peer.asked_when_gone || now - *peer.gone > kGoneTime)) {
      return FailureReason{static_cast<int32_t>(rank),
                           name_of_rank(static_cast<int32_t>(rank)) + " died"};
    }
  }
  return std::nullopt;
}

std::optional<FailureReason> Watchdog::look_at_store(Clock::time_point now) const {
  // A rank that is done does not need the store.
  if (peers_[static_cast<size_t>(options_.rank)].heartbeat.leaving) return std::nullopt;
  if (store_lost_) {
    if (now - *store_lost_ < kStoreLostTime) return std::nullopt;
    return blame_store("is gone (" + store_error_ + ")");
  }
  if (now - store_answered_ > options_.timeout) {
    return blame_store("has not answered for " +
                       seconds_text(seconds_between(store_answered_, now)));
  }
  const double timeout = std::chrono::duration<double>(options_.timeout).count();
  const Board seen = board();
  if (const auto silent = most_silent(seen, timeout)) {
    // Its last heartbeat may be older than the store's last answer, even if both stopped together.
    const double unanswered = seconds_between(store_answered_, now);
    if (*silent == 0 && options_.store_on_rank_0 && unanswered > silence_seconds()) {
      return blame_store("has not answered for " + seconds_text(unanswered));
    }
    return silence_of(seen, *silent);
  }
  return std::nullopt;
}

Board Watchdog::board() const {
  Board board;
  board.self = options_.rank;
  board.members = groups_;
  const Clock::time_point now = Clock::now();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const bool self = static_cast<int32_t>(rank) == options_.rank;
    board.ranks.push_back({.identity = options_.identities[rank],
                           .heartbeat = peers_[rank].heartbeat,
                           .silent_seconds = self ? 0 : seconds_between(peers_[rank].heard, now)});
  }
  return board;
}

std::string Watchdog::name_of_rank(int32_t rank) const {
  return rank_text(rank, options_.identities[static_cast<size_t>(rank)]);
}

// ---- Leaving and ending ----

int64_t Watchdog::ask_to_talk() {
  ++asked_;
  changed_.notify_all();
  return asked_;
}

void Watchdog::leave() {
  MutexLock lock(mutex_);
  peers_[static_cast<size_t>(options_.rank)].heartbeat.leaving = true;
  const int64_t told = ask_to_talk();
  changed_.wait_for(lock, kKnowTime, [&]() LONGSHORE_REQUIRES(mutex_) {
    return answered_ >= told || failure_ || store_lost_;
  });
  if (options_.rank != 0 || !options_.store_on_rank_0) return;
  const Clock::time_point end = Clock::now() + options_.timeout;
  const auto over = [this]() LONGSHORE_REQUIRES(mutex_) {
    return failure_ || store_lost_ ||
           std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return peer.heartbeat.leaving; });
  };
  while (!over() && Clock::now() < end) {
    ask_to_talk();
    changed_.wait_for(lock, kAskPeriod, over);
  }
}

bool Watchdog::others_know() const {
  const Clock::time_point now = Clock::now();
  for (const Peer& peer : peers_) {
    const bool self = &peer == &peers_[static_cast<size_t>(options_.rank)];
    const bool silent = seconds_between(peer.heard, now) > silence_seconds();
    if (!self && !silent && !peer.gone && !peer.heartbeat.leaving &&
        !peer.heartbeat.knows_failure) {
      return false;
    }
  }
  return true;
}

void Watchdog::let_others_know(MutexLock& lock) {
  const bool serves = options_.rank == 0 && options_.store_on_rank_0;
  const Clock::time_point end = Clock::now() + kKnowTime;
  const int64_t told = ask_to_talk();
  const auto over = [&]() LONGSHORE_REQUIRES(mutex_) {
    return store_lost_ || (answered_ >= told && (!serves || others_know()));
  };
  while (!over() && Clock::now() < end) {
    changed_.wait_for(lock, kAskPeriod, over);
    ask_to_talk();
  }
}

void Watchdog::end_process(const std::string& message) {
  log_error(message);
  try {
    if (options_.before_exit) options_.before_exit(message);
  } catch (const std::exception& error) {
    log_warning(std::string("the failure reason could not be recorded: ") + error.what());
  }
  {
    MutexLock lock(mutex_);
    let_others_know(lock);
  }
  ::_exit(static_cast<int>(ExitCode::kDistributed));
}

}  // namespace longshore
