// FailureClock: which failures a point of a stream is behind. Streams that run on a GPU are told of
// a failure late, after works behind it were issued; a point then fails exactly if it is behind the
// place that failed. FailureLog is a stream's own record, shared with points that depend on it. Any
// thread.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace longshore {

// The earliest work of one stream that failed.
class FailureLog {
 public:
  // Of several failures the one of the earliest work stays.
  void record(int64_t sequence, std::exception_ptr error);
  // The failure at or before `sequence`, or null.
  std::exception_ptr before(int64_t sequence) const;

 private:
  mutable std::mutex mutex_;
  int64_t sequence_ = INT64_MAX;
  std::exception_ptr error_;
};

// For every stream that a point depends on, the last work of it that it is behind. A value.
class FailureClock {
 public:
  // Behind work `sequence` of that stream.
  void advance(const std::shared_ptr<FailureLog>& log, int64_t sequence);
  // Behind everything that `other` is behind.
  void merge(const FailureClock& other);
  // The first failure found that this is behind, or null.
  std::exception_ptr failure() const;
  size_t streams() const { return entries_.size(); }

 private:
  struct Entry {
    std::shared_ptr<FailureLog> log;
    int64_t sequence;
  };
  std::vector<Entry> entries_;
};

}  // namespace longshore
