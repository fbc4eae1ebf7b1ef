// WorkspaceMeter: counts the bytes of a device's temporaries by label against a limit. The
// DeviceMemory that made it and every live allocation share it, so memory that is freed late is
// still counted. Any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"

namespace longshore {

// A named holder and its bytes, for error texts.
struct BytesHeld {
  std::string name;
  Bytes bytes = 0;
};

// Describes the largest: "slot.0 16.0 MiB, slot.1 16.0 MiB, 3 more 1.0 MiB"; "none" if empty.
std::string describe_largest(std::vector<BytesHeld> held);

// The use of device memory by temporaries. An allocator that caches freed memory, such as a GPU's,
// holds more than its tensors use.
struct WorkspaceUse {
  Bytes held = 0, held_peak = 0;        // taken from the device; the limit applies to it
  Bytes tensors = 0, tensors_peak = 0;  // used by tensors, as the allocator rounds them
  int64_t retries = 0;                  // requests that succeeded after freeing cached memory
};

class WorkspaceMeter {
 public:
  // The bytes of one label; its address is stable while the meter lives.
  struct Account {
    std::string label;
    Bytes bytes = 0;
  };

  // An allocator, such as a GPU's, that counts its own use and enforces the limit itself.
  class Gauge {
   public:
    virtual ~Gauge() = default;
    virtual WorkspaceUse use() const = 0;
    virtual void reset_peak() = 0;
  };

  // `cap` is the device's whole cap, `owned` the bytes of its buffers; the limit is the difference.
  WorkspaceMeter(Bytes cap, Bytes owned);

  // Returns the label's account, made at first use.
  Account& account(std::string_view label);
  // Counts `bytes` for the account. Over the limit it throws OutOfMemoryError and counts nothing.
  void take(Account& account, Bytes bytes);
  void give_back(Account& account, Bytes bytes);

  // Makes use() report the gauge, which replaces take() and give_back().
  void follow(std::shared_ptr<Gauge> gauge);
  // Throws the same OutOfMemoryError as take(), for an allocator behind the gauge that has no
  // `bytes` more for `label`.
  [[noreturn]] void refuse(const std::string& label, Bytes bytes) const;

  // Sets the buffers that error texts name.
  void set_owned(std::vector<BytesHeld> buffers);

  Bytes limit() const { return cap_ - owned_; }
  WorkspaceUse use() const;
  void reset_peak();
  // Returns the labels that hold bytes now, largest first.
  std::vector<BytesHeld> held() const;

 private:
  [[noreturn]] void throw_over(const std::string& label, Bytes bytes, Bytes current) const
      LONGSHORE_REQUIRES(mutex_);
  std::vector<BytesHeld> held_locked() const LONGSHORE_REQUIRES(mutex_);

  const Bytes cap_;
  const Bytes owned_;
  mutable Mutex mutex_;
  std::map<std::string, Account, std::less<>> accounts_ LONGSHORE_GUARDED_BY(mutex_);
  std::vector<BytesHeld> buffers_ LONGSHORE_GUARDED_BY(mutex_);
  Bytes current_ LONGSHORE_GUARDED_BY(mutex_) = 0;
  Bytes peak_ LONGSHORE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Gauge> gauge_ LONGSHORE_GUARDED_BY(mutex_);  // null: counted here
};

}  // namespace longshore
