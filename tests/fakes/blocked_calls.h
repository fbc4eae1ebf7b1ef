// System calls that fail from now on, as container runtimes have it: a seccomp filter on the
// calling process and all that it starts. For children of tests: it cannot be taken back.
#pragma once

#include <vector>

namespace longshore::fakes {

class BlockedCalls {
 public:
  // The calls by number, and the errno they answer.
  BlockedCalls(const std::vector<int>& calls, int error_number);
  // Async-signal-safe. False where the kernel refuses filters.
  bool install() const;

 private:
  std::vector<unsigned long long> instructions_;  // of the filter, one each
};

}  // namespace longshore::fakes
