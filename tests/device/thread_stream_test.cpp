#include "device/thread_stream.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <vector>

namespace longshore {
namespace {

// Work of one stream runs in order, whatever the delays.
TEST(ThreadStream, RunsInOrderWhateverTheDelays) {
  std::vector<int> order;
  ThreadStream stream("a", StreamDelays{.seed = 3, .most_microseconds = 200});
  for (int i = 0; i < 50; ++i) {
    stream.enqueue({}, [&order, i] { order.push_back(i); });
  }
  stream.synchronize();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order.at(static_cast<size_t>(i)), i);
}

// Work waits for events of other streams, although those are enqueued first and run later.
TEST(ThreadStream, WaitsForEventsOfOtherStreams) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const StreamDelays delays{.seed = seed, .most_microseconds = 300};
    int value = 0;
    ThreadStream producer("producer", delays);
    ThreadStream consumer("consumer", delays);
    for (int i = 1; i <= 10; ++i) {
      const Event made = producer.enqueue({}, [&value, i] { value = i; });
      int seen = 0;
      const std::array<Event, 1> after = {made};
      const Event read = consumer.enqueue(after, [&] { seen = value; });
      const std::array<Event, 1> next = {read};
      producer.enqueue(next, [&value] { value = -1; });
      read.wait();
      EXPECT_EQ(seen, i);
    }
    producer.synchronize();
  }
}

// A failure skips all later work of the stream and all work that waits for it.
TEST(ThreadStream, AFailureReachesWhateverIsBehindIt) {
  ThreadStream first("first"), second("second");
  std::atomic<int> ran = 0;
  const std::array<Event, 1> failed = {
      first.enqueue({}, [] { throw std::runtime_error("unit 3 broke"); })};
  const Event behind = first.enqueue({}, [&ran] { ++ran; });
  const Event beside = second.enqueue(failed, [&ran] { ++ran; });
  for (const Event& event : {failed[0], behind, beside}) {
    try {
      event.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "unit 3 broke");
    }
  }
  EXPECT_THROW(second.synchronize(), std::runtime_error);
  EXPECT_EQ(ran, 0);
}

// A failure of a stream's preparation (choosing a GPU may fail) reaches all of its work.
TEST(ThreadStream, AFailureOfItsPreparationReachesAllWork) {
  bool ran = false;
  ThreadStream stream("a", std::nullopt, [] { throw std::runtime_error("no such GPU"); });
  const Event event = stream.enqueue({}, [&ran] { ran = true; });
  try {
    event.wait();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "no such GPU");
  }
  EXPECT_FALSE(ran);
}

// The captures of a work item are released before its event is done.
TEST(ThreadStream, LetsGoOfItsWorkBeforeItIsDone) {
  ThreadStream stream("a");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  const Event event = stream.enqueue({}, [held = std::move(held)] {});
  event.wait();
  EXPECT_TRUE(watched.expired());
}

// A default event is done.
TEST(ThreadStream, ADefaultEventIsDone) {
  Event().wait();
}

}  // namespace
}  // namespace longshore
