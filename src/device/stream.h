// Stream: work that runs in order, beside the work of other streams, and Event: a point in it. A
// device has one stream for each lane of a step. Streams are made before the first step and
// destroyed after the last; one thread enqueues, any thread may look at events.
//
// Two kinds of streams behind one interface:
//   ThreadStream   a real thread: all streams of the CPU device, and on every device the update of
//                  parameters at home
//   CudaStream     a CUDA stream: the work is a host function that issues to it at once
//
// A work that throws fails its event; whatever waits for that event, and whatever is enqueued
// behind it, fails with the same exception and does not run.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace longshore {

// Copies are cheap and mean the same point. Default: a point that is reached.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool done() const = 0;
    // Blocks the calling host thread until the point is reached; throws what the work threw.
    virtual void wait() = 0;
    // Calls `call` once when the point is reached or has failed: at once, on the calling thread,
    // where it is; else on the stream's.
    virtual void on_done(std::function<void()> call) = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  bool done() const { return !state_ || state_->done(); }
  void wait() const {
    if (state_) state_->wait();
  }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual const std::string& name() const = 0;
  // `work` runs when everything enqueued before it and every event of `after`, of any stream of the
  // device, is done. Returns the point behind it. What `work` refers to must live until then.
  virtual Event enqueue(std::span<const Event> after, std::function<void()> work) = 0;
  // Blocks until everything enqueued so far is done; throws the first failure.
  virtual void synchronize() = 0;
};

}  // namespace longshore
