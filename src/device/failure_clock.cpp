#include "device/failure_clock.h"

#include <algorithm>
#include <utility>

namespace longshore {

void FailureLog::record(int64_t sequence, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (sequence >= sequence_) return;
  sequence_ = sequence;
  error_ = std::move(error);
}

std::exception_ptr FailureLog::before(int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  return sequence_ <= sequence ? error_ : nullptr;
}

void FailureClock::advance(const std::shared_ptr<FailureLog>& log, int64_t sequence) {
  for (Entry& entry : entries_) {
    if (entry.log != log) continue;
    entry.sequence = std::max(entry.sequence, sequence);
    return;
  }
  entries_.push_back({log, sequence});
}

void FailureClock::merge(const FailureClock& other) {
  for (const Entry& entry : other.entries_) advance(entry.log, entry.sequence);
}

std::exception_ptr FailureClock::failure() const {
  for (const Entry& entry : entries_) {
    if (std::exception_ptr error = entry.log->before(entry.sequence)) return error;
  }
  return nullptr;
}

}  // namespace longshore
