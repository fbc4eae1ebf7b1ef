// Watchdog: reports this rank's heartbeat and progress to the other ranks, and detects when one of
// them died, hangs, disagrees or failed. A World owns it. Any thread may call its functions; none
// blocks longer than stated.
//
// [Note: two threads] The store thread exchanges heartbeats over its own connection and may hang
// while the store's server hangs. The monitor thread (the guard) never blocks on other processes:
// it checks the clock and the processes of its host, and ends this process if nothing else does.
//
// [Note: failure reason] The run ends for one reason. A rank that finds one offers it to the store;
// the first one there counts and reaches all ranks with their next heartbeat. If the store is gone,
// a rank adopts its own reason.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/awake_clock.h"
#include "base/mutex.h"
#include "comm/operations/operation.h"
#include "comm/store/store.h"
#include "comm/watchdog/blame.h"

namespace longshore {

struct WatchdogOptions {
  int32_t rank = 0;
  std::vector<ProcessIdentity> identities;  // by rank
  StoreAddress store;
  std::string secret;           // the run's secret, for the store
  std::string prefix;           // prefix of the run's keys
  bool store_on_rank_0 = true;  // otherwise the launcher serves it
  std::chrono::milliseconds timeout = {};
  std::chrono::milliseconds heartbeat = {};
  std::chrono::milliseconds grace = {};
  std::function<void(const std::string&)> before_exit = {};
};

class Watchdog {
 public:
  // Starts both threads. The store thread shares ownership; it may outlive stop() if it hangs.
  static std::shared_ptr<Watchdog> start(WatchdogOptions options);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  // Ends the threads. If a failure is known, first waits up to three seconds for the store to have
  // it, and on the rank that serves the store for the other ranks to know it.
  void stop();

  // Record this rank's progress in the group of the key "name[members]".
  void join_group(const std::string& key, const std::vector<int32_t>& members);
  void begun(const std::string& key, const Operation& operation);
  void finished(const std::string& key, int64_t sequence);

  bool has_failure() const { return has_failure_.load(std::memory_order_acquire); }
  // Returns the known failure; has_failure() must be true.
  FailureReason failure() const;
  // Returns the text of this rank's CommError: the failure reason and what this rank waited for.
  std::string message(const std::string& waited_for = "") const;

  // Offers a reason and returns the one that counts; waits for the store at most two seconds.
  FailureReason offer(const FailureReason& reason) noexcept;
  // Finds the rank that keeps the operation from finishing and offers that reason.
  FailureReason blame_delay(const std::string& key, const Operation& operation,
                            double waited_seconds);
  // Explains a broken transfer to or from `peer`, or this rank's own failure if that is `peer`:
  // waits up to 8 s to see which rank is gone.
  FailureReason blame_break(int32_t peer, const Operation& operation, const std::string& reason);

  // Marks this rank as done. The rank that serves the store waits until all ranks are done.
  void leave();

  // Prints the message, calls before_exit, informs the other ranks, and exits with code 8.
  [[noreturn]] void end_process(const std::string& message);

 private:
  using Clock = AwakeClock;
  struct Peer {
    RankHeartbeat heartbeat;
    Clock::time_point heard = Clock::now();
    std::optional<Clock::time_point> gone = {};  // time at which its process was found gone
    int64_t asked_when_gone = 0;
  };

  explicit Watchdog(WatchdogOptions options);
  void run_store_thread();
  void talk(StoreConnection& store);
  void run_guard();
  std::optional<FailureReason> look_around() LONGSHORE_REQUIRES(mutex_);
  std::optional<FailureReason> look_at_peers(Clock::time_point now) LONGSHORE_REQUIRES(mutex_);
  std::optional<FailureReason> look_at_store(Clock::time_point now) const
      LONGSHORE_REQUIRES(mutex_);
  FailureReason blame_store(const std::string& what) const;
  void propose(const FailureReason& reason) LONGSHORE_REQUIRES(mutex_);
  void adopt(const FailureReason& reason) LONGSHORE_REQUIRES(mutex_);
  double silence_seconds() const;
  Board board() const LONGSHORE_REQUIRES(mutex_);
  std::string heartbeat_to_send() LONGSHORE_REQUIRES(mutex_);
  std::string key(const std::string& name) const { return options_.prefix + name; }
  std::string name_of_rank(int32_t rank) const;
  bool others_know() const LONGSHORE_REQUIRES(mutex_);
  void let_others_know(MutexLock& lock) LONGSHORE_REQUIRES(mutex_);
  int64_t ask_to_talk() LONGSHORE_REQUIRES(mutex_);

  const WatchdogOptions options_;
  mutable Mutex mutex_;
  mutable Condition changed_;
  // By rank; this rank's own heartbeat is at its index. The vector's length never changes.
  std::vector<Peer> peers_ LONGSHORE_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<int32_t>> groups_ LONGSHORE_GUARDED_BY(mutex_);
  std::optional<FailureReason> failure_ LONGSHORE_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> failure_time_ LONGSHORE_GUARDED_BY(mutex_);
  std::optional<FailureReason> offered_ LONGSHORE_GUARDED_BY(mutex_);  // not at the store yet
  Clock::time_point offered_time_ LONGSHORE_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> store_lost_ LONGSHORE_GUARDED_BY(mutex_);
  std::string store_error_ LONGSHORE_GUARDED_BY(mutex_);
  Clock::time_point store_answered_ LONGSHORE_GUARDED_BY(mutex_) = Clock::now();
  // [Note: exchanges] An exchange with the store begins on request or after a heartbeat interval.
  // answered_ is the value of asked_ at the start of the last complete exchange.
  int64_t asked_ LONGSHORE_GUARDED_BY(mutex_) = 0;
  int64_t answered_ LONGSHORE_GUARDED_BY(mutex_) = 0;
  std::string last_operation_ LONGSHORE_GUARDED_BY(mutex_);
  bool closing_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_failure_{false};
  std::thread store_thread_;
  bool store_thread_done_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::thread guard_;
};

}  // namespace longshore
