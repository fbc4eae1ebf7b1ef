// open_retrying: open(2) that retries on EINTR. Internal to src/base; any thread.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <string>

namespace longshore {

// Returns -1 and sets errno on failure, as open(2) does.
inline int open_retrying(const std::string& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace longshore
