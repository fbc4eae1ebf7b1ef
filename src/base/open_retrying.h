// open(2), again where a signal came between. Internal to src/base; any thread.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <string>

namespace longshore {

// -1 with errno, as open(2).
inline int open_retrying(const std::string& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace longshore
