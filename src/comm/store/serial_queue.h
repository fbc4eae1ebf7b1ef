// SerialQueue: a thread that runs tasks one after the other, in order. The pushing thread owns it;
// any thread may wait for a task.
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
    // Returns false if the task is not done within `time`.
    bool wait_for(std::chrono::milliseconds time);
    // Returns the exception of a finished task; null if it succeeded.
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
  // Runs the queued tasks and joins the thread; after abandon() it does neither.
  ~SerialQueue();

  // Objects that `work` refers to must outlive it; after abandon(), they must live to process exit.
  std::shared_ptr<Task> push(std::function<void()> work);

  // Gives up a thread that hangs in a call without a deadline. The thread stays until the process
  // ends, and the queued tasks never run.
  void abandon();

 private:
  // The thread shares this state, because an abandoned thread outlives the queue.
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
