// WorkspaceMeter: counts the bytes of a device's temporaries by label against a limit. Shared by
// the DeviceMemory that made it and every live allocation, so that memory freed late is still
// counted right. Any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace longshore {

// Somebody's bytes, for error texts.
struct BytesHeld {
  std::string name;
  Bytes bytes = 0;
};

// "slot.0 16.0 MiB, slot.1 16.0 MiB, 3 more 1.0 MiB", largest first; "none" when nobody holds any.
std::string describe_largest(std::vector<BytesHeld> held);

// What temporaries take of a device. An allocator that keeps freed memory for later, as a GPU's,
// holds more than its tensors fill.
struct WorkspaceUse {
  Bytes held = 0, held_peak = 0;        // of the device: what the limit is for
  Bytes tensors = 0, tensors_peak = 0;  // filled by tensors, as the allocator rounds them
  int64_t retries = 0;                  // requests that were met by giving back what was kept
};

class WorkspaceMeter {
 public:
  // Bytes of one label; its address is stable for the meter's life.
  struct Account {
    std::string label;
    Bytes bytes = 0;
  };

  // An allocator that keeps count itself, and itself keeps to the limit: a GPU's.
  class Gauge {
   public:
    virtual ~Gauge() = default;
    virtual WorkspaceUse use() const = 0;
    virtual void reset_peak() = 0;
  };

  // `cap` and `owned` are the device's whole cap and its buffers' bytes: the limit is the rest.
  WorkspaceMeter(Bytes cap, Bytes owned);

  // The label's account, made at first use.
  Account& account(std::string_view label);
  // Counts `bytes` for the account. Throws OutOfMemoryError, and counts nothing, over the limit.
  void take(Account& account, Bytes bytes);
  void give_back(Account& account, Bytes bytes);

  // From here on use() is the gauge's, which replaces take() and give_back().
  void follow(std::shared_ptr<Gauge> gauge);
  // The allocator behind the gauge has no `bytes` more for `label`: throws the same
  // OutOfMemoryError as take().
  [[noreturn]] void refuse(const std::string& label, Bytes bytes) const;

  // The buffers that error texts name.
  void set_owned(std::vector<BytesHeld> buffers);

  Bytes limit() const { return cap_ - owned_; }
  WorkspaceUse use() const;
  void reset_peak();
  // Labels that hold bytes now, largest first.
  std::vector<BytesHeld> held() const;

 private:
  [[noreturn]] void throw_over(const std::string& label, Bytes bytes, Bytes current) const;
  std::vector<BytesHeld> held_locked() const;

  const Bytes cap_;
  const Bytes owned_;
  mutable std::mutex mutex_;
  std::map<std::string, Account, std::less<>> accounts_;
  std::vector<BytesHeld> buffers_;
  Bytes current_ = 0;
  Bytes peak_ = 0;
  std::shared_ptr<Gauge> gauge_;  // null: counted here
};

}  // namespace longshore
