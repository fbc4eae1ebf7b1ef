// BlockedCalls: system calls that fail from now on, as in some container runtimes, by a seccomp
// filter on the calling process and all that it starts. It cannot be removed, so it is for child
// processes of tests.
#pragma once

#include <vector>

namespace longshore::fakes {

class BlockedCalls {
 public:
  // Takes the numbers of the calls and the errno that they return.
  BlockedCalls(const std::vector<int>& calls, int error_number);
  // Installs the filter; false if the kernel refuses filters. Async-signal-safe.
  bool install() const;

 private:
  std::vector<unsigned long long> instructions_;  // instructions of the filter
};

}  // namespace longshore::fakes
