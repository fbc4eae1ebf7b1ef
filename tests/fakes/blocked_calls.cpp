#include "tests/fakes/blocked_calls.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstring>

namespace longshore::fakes {

static_assert(sizeof(sock_filter) == sizeof(unsigned long long));

BlockedCalls::BlockedCalls(const std::vector<int>& calls, int error_number) {
  const auto add = [this](sock_filter one) {
    std::memcpy(&instructions_.emplace_back(), &one, sizeof(one));
  };
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const int call : calls) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(call), 0, 1));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<__u32>(error_number)));
  }
  add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
}

bool BlockedCalls::install() const {
  auto* filter = reinterpret_cast<sock_filter*>(
      const_cast<unsigned long long*>(instructions_.data()));  // the kernel only reads it
  const sock_fprog program = {static_cast<unsigned short>(instructions_.size()), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace longshore::fakes
