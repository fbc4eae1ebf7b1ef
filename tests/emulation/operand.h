// Operand: memory that a kernel may access, of exactly N values, aligned like a GPU's allocations
// and watched while it lives. Test code; one thread.
#pragma once

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "tests/emulation/access_checker.h"

namespace longshore::emulation {

template <typename T>
class Operand {
 public:
  Operand(const char* name, const std::vector<T>& values) : Operand(name, values.size(), true) {
    if (!values.empty()) std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  // Makes memory for results and scratch: NaN, and not to be read before a kernel wrote it.
  Operand(const char* name, size_t count) : Operand(name, count, false) {
    std::memset(static_cast<void*>(data_), 0xff, count * sizeof(T));
  }
  ~Operand() {
    forget(data_);
    std::free(data_);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  T* data() { return data_; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  static constexpr size_t kAlignment = 256;

  Operand(const char* name, size_t count, bool written) : count_(count) {
    void* memory = nullptr;
    LONGSHORE_CHECK(posix_memalign(&memory, kAlignment, count * sizeof(T)) == 0) << count;
    data_ = static_cast<T*>(memory);
    watch(name, data_, count * sizeof(T), written);
  }

  T* data_ = nullptr;
  size_t count_;
};

}  // namespace longshore::emulation
