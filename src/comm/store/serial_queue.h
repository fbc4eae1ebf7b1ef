// SerialQueue: a thread that runs tasks one after the other, in the order they came. Owned by
// whoever pushes; one thread pushes, any thread may wait for a task.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace longshore {

class SerialQueue {
 public:
  class Task {
   public:
    explicit Task(std::function<void()> work) : work_(std::move(work)) {}
    // False when the task is not done by then.
    bool wait_for(std::chrono::milliseconds time);
    // What the task threw; null when it succeeded. Only of a task that is done.
    std::exception_ptr error();

   private:
    friend class SerialQueue;
    void run();

    std::function<void()> work_;
    Mutex mutex_;
    Condition finished_;
    bool done_ LONGSHORE_GUARDED_BY(mutex_) = false;
    std::exception_ptr error_ LONGSHORE_GUARDED_BY(mutex_);
  };

  SerialQueue();
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;
  // Runs what is queued, then joins; after abandon() neither.
  ~SerialQueue();

  // What `work` refers to must live until it has run: after abandon(), for as long as the process.
  std::shared_ptr<Task> push(std::function<void()> work);

  // The thread hangs in a call that has no deadline of its own: it is left to the end of the
  // process, and what is queued behind is never run.
  void abandon();

 private:
  // Outlives the queue where the thread is abandoned: shared with the thread.
  struct Shared {
    Mutex mutex;
    Condition changed;
    std::deque<std::shared_ptr<Task>> tasks LONGSHORE_GUARDED_BY(mutex);
    bool closing LONGSHORE_GUARDED_BY(mutex) = false;
    bool abandoned LONGSHORE_GUARDED_BY(mutex) = false;
  };
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace longshore
