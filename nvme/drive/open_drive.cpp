#include "nvme/drive/open_drive.h"

#include <mutex>

#include "base/errors.h"
#include "base/log.h"
#include "nvme/drive/io_ring.h"

namespace longshore {
namespace {

// Logs once per process, whatever the number of drives.
void say_that_threads_serve(const std::string& reason) {
  static std::once_flag said;
  std::call_once(said, [&] {
    log_info("io_uring does not work here (" + reason +
             "): threads with pread and pwrite are used");
  });
}

}  // namespace

std::unique_ptr<BlockFile> make_block_file(const DirectFile* file, int depth, IoEngine engine,
                                           const std::vector<std::span<std::byte>>& memory) {
  if (engine != IoEngine::kThreads) {
    std::string reason;
    std::unique_ptr<IoRing> ring =
        IoRing::try_make(file, {.depth = depth, .memory = memory}, reason);
    if (ring != nullptr) return ring;
    if (engine == IoEngine::kRing) throw IoError(file->path() + ": no io_uring: " + reason);
    say_that_threads_serve(reason);
  }
  return std::make_unique<IoPool>(file, depth);
}

OpenDrive::OpenDrive(const DriveOptions& options) : file_(options.file) {
  drive_ = std::make_unique<ThreadDrive>(
      [this, options] {
        return make_block_file(&file_, options.depth, options.engine, options.memory);
      },
      options.chunk_bytes);
}

}  // namespace longshore
