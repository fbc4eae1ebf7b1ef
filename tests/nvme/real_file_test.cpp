// io_uring and threads on a real file: same bytes, limits and blocked calls, lock, full disk.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "device/host_mapping.h"
#include "nvme/drive/drive.h"
#include "nvme/drive/io_ring.h"
#include "tests/fakes/blocked_calls.h"
#include "tests/nvme/scratch_file.h"

namespace longshore {
namespace {

constexpr Bytes kFileBytes = 16 * kMiB;

// Runs `body` in a process of its own and returns its exit status; 99: it threw.
template <typename Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool moves_bytes(Drive& drive, std::span<std::byte> window) {
  const BlockBuffer written(kFileBytes / 2);
  fill_random(written.bytes(), 7);
  drive.write(kMiB, written.bytes());
  drive.flush();
  const auto read = window.first(written.bytes().size());
  drive.read(kMiB, read);
  return same_bytes(read, written.bytes());
}

struct Fixture {
  ScratchDirectory directory;
  HostMapping window{kFileBytes, "I/O window"};
  DriveOptions options(IoEngine engine) const {
    return {.file = {.path = directory.file("state"), .size_bytes = kFileBytes},
            .chunk_bytes = kMiB,
            .depth = 8,
            .engine = engine,
            .memory = {window.bytes()}};
  }
};

// Goal: a file that has a name elsewhere too is not written to, nor one behind a link.
TEST(RealFile, IsNotWrittenUnderAnotherName) {
  const Fixture fixture;
  const std::string state = fixture.directory.file("state");
  write_file_durably(fixture.directory.file("victim"), "precious");
  const DirectFileOptions options{.path = state, .size_bytes = kMiB};
  std::filesystem::create_hard_link(fixture.directory.file("victim"), state);
  EXPECT_THROW(DirectFile{options}, IoError);
  std::filesystem::remove(state);
  std::filesystem::create_symlink(fixture.directory.file("victim"), state);
  EXPECT_THROW(DirectFile{options}, IoError);
  EXPECT_EQ(read_whole_file(fixture.directory.file("victim"), kKiB), "precious");
}

// io_uring and threads move the same bytes.
TEST(RealFile, RingAndThreadsMoveTheSameBytes) {
  for (const IoEngine engine : {IoEngine::kAuto, IoEngine::kThreads}) {
    const Fixture fixture;
    OpenDrive drive(fixture.options(engine));
    EXPECT_EQ(drive.size_bytes(), kFileBytes);
    EXPECT_TRUE(moves_bytes(drive, fixture.window.bytes()));
    if (engine == IoEngine::kThreads) {
      EXPECT_EQ(drive.kind(), "threads");
    }
  }
}

// Goal: the drive works in every way that containers block io_uring.
TEST(RealFile, WorksWhereIoUringIsBlocked) {
  const std::vector<std::pair<std::vector<int>, bool>> ways = {
      {{__NR_io_uring_setup}, true},
      {{__NR_io_uring_enter}, true},
      {{__NR_io_uring_register}, false},
      {{__NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register}, true},
  };
  for (const auto& [calls, needs_threads] : ways) {
    const Fixture fixture;
    const int status = in_child([&, &calls = calls, needs_threads = needs_threads] {
      if (!fakes::BlockedCalls(calls, EPERM).install()) return 2;
      OpenDrive drive(fixture.options(IoEngine::kAuto));
      if (needs_threads && drive.kind() != "threads") return 3;
      return moves_bytes(drive, fixture.window.bytes()) ? 0 : 4;
    });
    EXPECT_EQ(status, 0) << "call " << calls[0];
  }
}

// Goal: a low limit on locked memory costs speed only. The child is not root, which has no limit.
TEST(RealFile, WorksUnregisteredUnderALowMemoryLockLimit) {
  const Fixture fixture;
  {
    const DirectFile made(fixture.options(IoEngine::kAuto).file);
  }
  std::filesystem::permissions(fixture.directory.path(), std::filesystem::perms::all);
  std::filesystem::permissions(fixture.directory.file("state"), std::filesystem::perms::all);
  const int status = in_child([&] {
    const rlimit limit = {kMiB, kMiB};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 2;
    if (getuid() == 0 && setuid(65534) != 0) return 3;
    OpenDrive drive(fixture.options(IoEngine::kAuto));
    return moves_bytes(drive, fixture.window.bytes()) ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
}

// The whole window is registered if the limit on locked memory allows it, and counted in any case.
TEST(RealFile, RegistersTheWindowWhereItMay) {
  const Fixture fixture;
  const DirectFile file(fixture.options(IoEngine::kAuto).file);
  std::string reason;
  const auto ring =
      IoRing::try_make(&file, {.depth = 4, .memory = {fixture.window.bytes()}}, reason);
  if (ring == nullptr) {
    ASSERT_FALSE(reason.empty());
    GTEST_SKIP() << "not run: no io_uring here: " << reason;
  }
  EXPECT_EQ(ring->registered_bytes() + ring->unregistered_bytes(), kFileBytes);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  const bool may = getuid() == 0 || limit.rlim_cur == RLIM_INFINITY ||
                   limit.rlim_cur >= static_cast<rlim_t>(4 * kFileBytes);
  if (may) {
    EXPECT_EQ(ring->registered_bytes(), kFileBytes);
  }
}

// A file belongs to one process, and a second one gets an error that names it.
TEST(RealFile, IsHeldByOneProcessAndNamesIt) {
  const Fixture fixture;
  DirectFileOptions options = fixture.options(IoEngine::kAuto).file;
  options.lock_wait = std::chrono::milliseconds(20);
  const DirectFile file(options);
  const pid_t owner = getpid();
  const int status = in_child([&] {
    try {
      const DirectFile second(options);
    } catch (const ConfigError& error) {
      const std::string holder = "held by process " + std::to_string(owner);
      return std::string(error.what()).find(holder) != std::string::npos ? 0 : 2;
    }
    return 3;
  });
  EXPECT_EQ(status, 0);
}

// Goal: a file that this process has closed, but the kernel not yet, is waited for, however short
// the time for another process's lock is.
TEST(RealFile, WaitsForALockThatItsOwnProcessGivesUp) {
  const Fixture fixture;
  DirectFileOptions options = fixture.options(IoEngine::kAuto).file;
  options.lock_wait = std::chrono::milliseconds(0);
  auto former = std::make_unique<DirectFile>(options);
  std::jthread closing([&former] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    former.reset();
  });
  EXPECT_NO_THROW(const DirectFile next(options));
}

// Goal: a start waits for the lock of a killed writer, and each of its writes is whole or absent.
TEST(RealFile, WaitsForTheLockOfAKilledWriter) {
  const Fixture fixture;
  for (int i = 0; i < 3; ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      OpenDrive drive(fixture.options(IoEngine::kAuto));
      Transfer transfer;
      transfer.kind = BlockOp::Kind::kWrite;
      transfer.memory = fixture.window.bytes();
      drive.start(transfer);
      if (write(ready[1], "x", 1) != 1) _exit(1);
      for (;;) drive.wait(transfer), drive.start(transfer);
    }
    close(ready[1]);  // else a child that dies early would block the read
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    EXPECT_NO_THROW(OpenDrive(fixture.options(IoEngine::kAuto)));
    waitpid(child, nullptr, 0);
    close(ready[0]);
  }
}

// A file that the disk cannot hold is refused with the missing bytes, and no file remains.
TEST(RealFile, RefusesAFullDiskWithTheMissingBytesAndLeavesNothing) {
  const ScratchDirectory directory;
  struct statvfs status{};
  ASSERT_EQ(statvfs(directory.path().c_str(), &status), 0);
  const Bytes available = static_cast<Bytes>(status.f_bavail) * static_cast<Bytes>(status.f_frsize);
  const DirectFileOptions options = {.path = directory.file("state"),
                                     .size_bytes = align_up(available + 64 * kGiB, kBlockBytes)};
  try {
    const DirectFile file(options);
    FAIL() << "made a file larger than the file system";
  } catch (const DoesNotFitError& error) {
    EXPECT_NE(std::string(error.what()).find("are missing"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(options.path));
}

}  // namespace
}  // namespace longshore
