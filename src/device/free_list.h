// FreeList: values that are leased and reused, the last returned first; makes a new one if none is
// free. Any thread; a list must outlive its leases.
#pragma once

#include <utility>
#include <vector>

#include "base/mutex.h"

namespace longshore {

template <typename T>
class FreeList {
 public:
  // The right to use one value; its destructor returns the value to the list. Move-only.
  class Lease {
   public:
    Lease(Lease&& other) noexcept
        : list_(std::exchange(other.list_, nullptr)), value_(other.value_) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(list_, other.list_);
      std::swap(value_, other.value_);
      return *this;
    }
    ~Lease() {
      if (list_ != nullptr) list_->give_back(value_);
    }
    const T& value() const { return value_; }

   private:
    friend class FreeList;
    Lease(FreeList* list, T value) : list_(list), value_(value) {}
    FreeList* list_;
    T value_;
  };

  template <typename Make>
  Lease take(const Make& make) {
    const MutexLock lock(mutex_);
    if (free_.empty()) return Lease(this, make());
    const T value = free_.back();
    free_.pop_back();
    return Lease(this, value);
  }

 private:
  void give_back(const T& value) {
    const MutexLock lock(mutex_);
    free_.push_back(value);
  }

  Mutex mutex_;
  std::vector<T> free_ LONGSHORE_GUARDED_BY(mutex_);
};

}  // namespace longshore
