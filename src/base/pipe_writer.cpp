#include "base/pipe_writer.h"

#include <poll.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/errors.h"

namespace longshore {

void wait_for_writer(const UniqueFd& fd, std::chrono::milliseconds patience) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) throw IoError("look at", fd.path(), errno);
  if (!S_ISFIFO(status.st_mode)) return;
  struct pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
  int found = 0;
  do {
    found = ::poll(&wait, 1, static_cast<int>(patience.count()));
  } while (found < 0 && errno == EINTR);
  if (found == 0) throw IoError("read " + fd.path() + ": a pipe that nobody writes to");
}

}  // namespace longshore
