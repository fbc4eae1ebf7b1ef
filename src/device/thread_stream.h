// ThreadStream: a thread that runs tasks in order, concurrently with other streams; Event: a point
// in a stream. Each lane of a step is one, on every device; on a GPU its tasks issue to the
// thread's own CUDA stream and wait for it before they return. The engine makes streams before the
// first step and destroys them after the last. One thread enqueues; any thread may wait for events.
//
// A task that throws fails its event. Tasks that wait for that event, and later tasks of the
// stream, do not run and fail with the same exception.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"

namespace longshore {

// Random pauses before about half of the tasks, to provoke races; they depend only on the seed.
struct StreamDelays {
  uint64_t seed = 0;
  int64_t most_microseconds = 0;
};

// Copies are cheap and refer to the same point. A default-constructed Event has been reached.
class Event {
 public:
  Event() = default;
  // Blocks the calling thread until the point is reached; rethrows the exception of the task.
  void wait() const;

 private:
  friend class ThreadStream;
  class Point;
  explicit Event(std::shared_ptr<Point> point) : point_(std::move(point)) {}

  std::shared_ptr<Point> point_;
};

class ThreadStream final {
 public:
  // `prepare` runs first on the new thread; if it throws, every task fails with its exception.
  explicit ThreadStream(std::string name, std::optional<StreamDelays> delays = std::nullopt,
                        std::function<void()> prepare = {});
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;
  // Runs the queued tasks, then joins the thread.
  ~ThreadStream();

  // Runs `work` after everything enqueued before it and every event of `after`, of any stream.
  // Returns the event that is reached when `work` is done; objects that `work` refers to must live
  // until then.
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
  Mutex mutex_;
  Condition changed_;
  std::deque<Task> tasks_ LONGSHORE_GUARDED_BY(mutex_);
  bool closing_ LONGSHORE_GUARDED_BY(mutex_) = false;
  Event last_;
  std::thread thread_;
};

}  // namespace longshore
