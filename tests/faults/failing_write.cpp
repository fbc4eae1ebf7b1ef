// A disk that refuses some writes, for a program that is started with it in LD_PRELOAD: write()
// fails for want of space on files whose path contains FAILING_PATH, from the FAILING_FROM-th call
// on, FAILING_COUNT times in each process. Later calls succeed. Test code, any thread.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

long number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atol(text);
}

bool is_meant(int fd) {
  static const char* const part = std::getenv("FAILING_PATH");
  if (part == nullptr) return false;
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return length > 0 && std::string_view(path.data(), static_cast<size_t>(length)).find(part) !=
                           std::string_view::npos;
}

bool fails_now() {
  static std::atomic<long> calls{0};
  static const long from = number_of("FAILING_FROM"), count = number_of("FAILING_COUNT");
  const long call = ++calls;
  return call >= from && call < from + count;
}

}  // namespace

extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  using Write = ssize_t(int, const void*, size_t);
  static auto* const real = reinterpret_cast<Write*>(dlsym(RTLD_NEXT, "write"));
  const int before = errno;
  if (is_meant(fd) && fails_now()) {
    errno = ENOSPC;
    return -1;
  }
  errno = before;
  return real(fd, data, bytes);
}
