// ThreadStream: a stream that is a real thread. The CPU device's streams, and on every device the
// one that updates parameters at home. Owned by whoever owns the device's streams; one thread
// enqueues, the destructor runs what is queued, then joins.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/philox.h"
#include "device/stream.h"

namespace longshore {

// Random pauses before every work, to provoke races; the same seed gives the same pauses.
struct StreamDelays {
  uint64_t seed = 0;
  int64_t most_microseconds = 0;
};

class ThreadStream final : public Stream {
 public:
  // `prepare` runs first on the new thread; what it throws fails all work.
  explicit ThreadStream(std::string name, std::optional<StreamDelays> delays = std::nullopt,
                        std::function<void()> prepare = {});
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;
  ~ThreadStream() override;

  const std::string& name() const override { return name_; }
  Event enqueue(std::span<const Event> after, std::function<void()> work) override;
  void synchronize() override;

 private:
  class Point;
  struct Task {
    std::vector<Event> after;
    std::function<void()> work;
    std::shared_ptr<Point> point;
  };
  void run(const std::function<void()>& prepare);
  void pause(int64_t index) const;

  std::string name_;
  std::optional<StreamDelays> delays_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool closing_ = false;
  Event last_;
  std::thread thread_;
};

}  // namespace longshore
