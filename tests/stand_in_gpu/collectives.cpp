// Stands in for NCCL: collectives between ranks that are threads of this process, over GPUs of host
// memory. Like NCCL it takes a GPU's memory only and adds in fp32 only, and a GPU runs one
// collective at a time in the order they were issued, so those of two communicators can deadlock. A
// deadlock is found from the waits themselves, and ends all ranks.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <unistd.h>

#include "base/errors.h"
#include "comm/collectives/nccl_communicator.h"
#include "comm/collectives/rank_sums.h"
#include "comm/operations/operation.h"
#include "device/cuda_runtime.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore {
namespace {

class StandInArena final : public DeviceArena {
 public:
  explicit StandInArena(Bytes bytes) : memory_(make_host_arena(bytes)), noted_(memory_->bytes()) {}
  std::span<std::byte> bytes() const override { return memory_->bytes(); }

 private:
  std::unique_ptr<DeviceArena> memory_;
  GpuBytes noted_;
};

// Joint: one collective of all ranks of its group.
struct Joint {
  std::vector<int32_t> members;             // ranks
  std::map<int32_t, Operation> operations;  // by rank
  std::map<int32_t, Communicator::Segments> segments;
  bool done = false;
};
using JointKey = std::pair<std::string, int64_t>;  // group and number of the collective in it

void run_joint(Joint& joint) {
  const CommKind kind = joint.operations.begin()->second.kind;
  if (kind == CommKind::kBarrier) return;
  const size_t members = joint.members.size();
  const size_t count = joint.segments.begin()->second.size();
  for (size_t s = 0; s < count; ++s) {
    const auto segment = [&](size_t m) { return joint.segments.at(joint.members[m])[s]; };
    const size_t bytes = segment(0).size(), part = bytes / members;
    for (size_t m = 0; m < members && kind == CommKind::kAllGather; ++m) {
      for (size_t other = 0; other < members; ++other) {
        if (other == m) continue;
        std::memcpy(segment(other).data() + m * part, segment(m).data() + m * part, part);
      }
    }
    if (kind == CommKind::kAllGather) continue;
    const auto floats = [&](size_t m) {
      return std::span(reinterpret_cast<float*>(segment(m).data()), bytes / sizeof(float));
    };
    std::vector<std::span<const float>> others;
    for (size_t m = 1; m < members; ++m) others.push_back(floats(m));
    std::vector<float> sum(floats(0).begin(), floats(0).end());
    add_in_rank_order(std::span(sum), 0, others);
    for (size_t m = 0; m < members; ++m) std::ranges::copy(sum, floats(m).begin());
  }
}

// Fabric: the queues of collectives of all GPUs of the process. Every function locks.
class Fabric {
 public:
  static Fabric& instance() {
    static auto* value = new Fabric;
    return *value;
  }

  void set_rules(std::vector<stand_in::OrderRule> rules) {
    const std::lock_guard lock(mutex_);
    rules_ = std::move(rules);
    given_.clear();
    arrived_.clear();
    queues_.clear();
    joints_.clear();
    failure_.clear();
    ended_ = 0;
  }

  std::string new_group() {
    const std::lock_guard lock(mutex_);
    return std::to_string(::getpid()) + "/" + std::to_string(++groups_);
  }

  // Puts the collective into the queue of the rank's GPU.
  void give(const JointKey& key, const std::vector<int32_t>& members, int32_t rank,
            const Operation& operation, Communicator::Segments segments) {
    std::unique_lock lock(mutex_);
    const stand_in::Given name{rank, operation.label.what, operation.label.unit.value_or(UnitId()),
                               ++given_[{rank, operation.label.what, operation.label.unit}]};
    for (const stand_in::OrderRule& rule : rules_) {
      if (!(rule.second == name)) continue;
      changed_.wait(lock, [&] { return arrived_.contains(key_of(rule.first)) || failed(); });
    }
    check(lock);
    arrived_.insert(key_of(name));
    Joint& joint = joints_[key];
    joint.members = members;
    joint.operations[rank] = operation;
    joint.segments[rank] = std::move(segments);
    queues_[rank].push_back(key);
    run_what_can();
    find_a_cycle();
    changed_.notify_all();
    check(lock);
  }

  // Returns whether it is done within a moment; throws CheckFailure if it never can be.
  bool done(const JointKey& key) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(20),
                      [&] { return joints_.at(key).done || failed(); });
    if (joints_.at(key).done) return true;
    check(lock);
    return false;
  }

  int64_t ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  using GivenKey = std::tuple<int32_t, std::string, int32_t, int64_t>;
  static GivenKey key_of(const stand_in::Given& given) {
    return {given.rank, given.what, given.unit.value, given.nth};
  }

  bool failed() const { return !failure_.empty(); }
  void check(const std::unique_lock<std::mutex>&) const {
    if (failed()) throw CommError(failure_);
  }

  const JointKey* running(int32_t rank) const {
    const auto queue = queues_.find(rank);
    return queue == queues_.end() || queue->second.empty() ? nullptr : &queue->second.front();
  }

  void run_what_can() {
    for (bool any = true; any;) {
      any = false;
      for (auto& [rank, queue] : queues_) {
        if (queue.empty()) continue;
        const JointKey key = queue.front();
        Joint& joint = joints_.at(key);
        const bool everywhere = std::ranges::all_of(joint.members, [&](int32_t member) {
          const JointKey* const there = running(member);
          return there != nullptr && *there == key;
        });
        if (!everywhere || !agree(joint)) continue;
        run_joint(joint);
        joint.done = true;
        joint.segments.clear();
        ++ended_;
        for (const int32_t member : joint.members) queues_.at(member).pop_front();
        any = true;
      }
    }
  }

  bool agree(const Joint& joint) {
    const std::string text = joint.operations.begin()->second.text();
    for (const auto& [rank, operation] : joint.operations) {
      if (operation.text() == text) continue;
      failure_ = "ranks disagree: " + text + " and " + operation.text();
      return false;
    }
    return true;
  }

  // Finds a deadlock: a rank's GPU runs the first collective of its queue, so it waits for members
  // whose GPUs run another one, and those for theirs. A cycle of waits never ends.
  void find_a_cycle() {
    for (const auto& [first, queue] : queues_) {
      std::vector<int32_t> way = {first};
      std::set<int32_t> seen;
      while (const std::optional<int32_t> next = waits_for(way.back())) {
        way.push_back(*next);
        if (*next != first && seen.insert(*next).second) continue;
        if (*next != first) break;
        failure_ = "collectives wait for each other for ever:";
        for (size_t i = 0; i + 1 < way.size(); ++i) {
          failure_ += (i == 0 ? " rank " : "; rank ") + std::to_string(way[i]) + " runs " +
                      joints_.at(*running(way[i])).operations.at(way[i]).text() +
                      " and waits for rank " + std::to_string(way[i + 1]);
        }
        return;
      }
    }
  }

  std::optional<int32_t> waits_for(int32_t rank) const {
    const JointKey* const mine = running(rank);
    if (mine == nullptr) return std::nullopt;
    for (const int32_t member : joints_.at(*mine).members) {
      const JointKey* const there = running(member);
      if (there != nullptr && *there != *mine) return member;
    }
    return std::nullopt;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t groups_ = 0, ended_ = 0;
  std::map<JointKey, Joint> joints_;
  std::map<int32_t, std::deque<JointKey>> queues_;  // by rank: not yet run on its GPU
  std::vector<stand_in::OrderRule> rules_;
  std::map<std::tuple<int32_t, std::string, std::optional<UnitId>>, int64_t> given_;
  std::set<GivenKey> arrived_;
  std::string failure_;  // ends all ranks
};

class StandInNccl final : public Communicator {
 public:
  StandInNccl(GroupOptions options, std::shared_ptr<Watchdog> watchdog, std::string group)
      : Communicator(options.name, static_cast<int32_t>(options.members.size()),
                     index_in_group(options)),
        options_(std::move(options)),
        watchdog_(std::move(watchdog)),
        group_(std::move(group)) {}

 private:
  class Pending final : public Completion::State {
   public:
    Pending(JointKey key, std::shared_ptr<Watchdog> watchdog)
        : key_(std::move(key)), watchdog_(std::move(watchdog)) {}
    void wait() override {
      while (!Fabric::instance().done(key_)) {
        if (watchdog_->has_failure()) throw CommError(watchdog_->message());
      }
    }

   private:
    JointKey key_;
    std::shared_ptr<Watchdog> watchdog_;
  };

  Completion start(const Collective& collective) override {
    check_for_nccl(collective, name());
    if (collective.kind == CommKind::kScalars) return {};
    LONGSHORE_CHECK(collective.kind != CommKind::kBroadcast) << "the stand-in has no broadcast";
    const Operation operation{collective.kind, collective.label, name(), ++sequence_,
                              collective.payload()};
    stand_in::run_stream();  // runs after the earlier work of the thread's stream
    const JointKey key{group_, sequence_};
    Fabric::instance().give(key, options_.members, options_.rank, operation, collective.segments);
    return Completion(std::make_unique<Pending>(key, watchdog_));
  }

  GroupOptions options_;
  std::shared_ptr<Watchdog> watchdog_;
  std::string group_;  // equal on all members
  int64_t sequence_ = 0;
};

}  // namespace

void stand_in::order_collectives(std::vector<OrderRule> rules) {
  Fabric::instance().set_rules(std::move(rules));
}

int64_t stand_in::collectives_ended() {
  return Fabric::instance().ended();
}

std::string nccl_version() {
  return "0.0.0";
}

std::unique_ptr<DeviceArena> make_nccl_arena(Bytes bytes, int device) {
  require_gpu(device);
  return std::make_unique<StandInArena>(bytes);
}

std::unique_ptr<Communicator> make_nccl_communicator(const GroupOptions& options,
                                                     std::shared_ptr<Watchdog> watchdog,
                                                     const ShareFirst& share_first,
                                                     int32_t device_index) {
  require_gpu(device_index);
  const std::string group = share_first(Fabric::instance().new_group());
  LONGSHORE_CHECK(group.starts_with(std::to_string(::getpid()) + "/"))
      << "the stand-in's ranks are threads of one process";
  return std::make_unique<StandInNccl>(options, std::move(watchdog), group);
}

}  // namespace longshore
