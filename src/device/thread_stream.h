// ThreadStream: a thread that runs work in order, beside the work of other streams, and Event: a
// point in it. Each lane of a step is one, on every device; on a GPU its work issues to a CUDA
// stream of the thread's own and waits for it before it returns. Streams are made before the first
// step and destroyed after the last; one thread enqueues, any thread may wait for events.
//
// A work that throws fails its event; whatever waits for that event, and whatever is enqueued
// behind it, fails with the same exception and does not run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/philox.h"

namespace longshore {

// Random pauses before every work, to provoke races; the same seed gives the same pauses.
struct StreamDelays {
  uint64_t seed = 0;
  int64_t most_microseconds = 0;
};

// Copies are cheap and mean the same point. Default: a point that is reached.
class Event {
 public:
  Event() = default;
  // Blocks the calling thread until the point is reached; throws what the work threw.
  void wait() const;

 private:
  friend class ThreadStream;
  class Point;
  explicit Event(std::shared_ptr<Point> point) : point_(std::move(point)) {}

  std::shared_ptr<Point> point_;
};

class ThreadStream final {
 public:
  // `prepare` runs first on the new thread; what it throws fails all work.
  explicit ThreadStream(std::string name, std::optional<StreamDelays> delays = std::nullopt,
                        std::function<void()> prepare = {});
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;
  // Runs what is queued, then joins the thread.
  ~ThreadStream();

  // `work` runs when everything enqueued before it and every event of `after`, of any stream, is
  // done. Returns the point behind it. What `work` refers to must live until then.
  Event enqueue(std::span<const Event> after, std::function<void()> work);
  // Blocks until everything enqueued so far is done; throws the first failure.
  void synchronize();

 private:
  struct Task {
    std::vector<Event> after;
    std::function<void()> work;
    std::shared_ptr<Event::Point> point;
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
