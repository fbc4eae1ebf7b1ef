// The order in which a checkpoint's bytes and names become durable, against power loss. The calls
// of fsync and rename in this binary are recorded on their way to the kernel.
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>

#include "base/file.h"
#include "tests/trainer/checkpoint_fixture.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/checkpoint/checkpoint_directory.h"

namespace longshore {
namespace {

std::mutex mutex;
std::vector<std::string>* recorded = nullptr;

void note(const std::string& what) {
  const std::lock_guard lock(mutex);
  if (recorded != nullptr) recorded->push_back(what);
}

std::string path_of(int fd) {
  std::array<char, 4096> path{};
  const ssize_t bytes =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size() - 1);
  return bytes < 0 ? "?" : std::string(path.data(), static_cast<size_t>(bytes));
}

}  // namespace
}  // namespace longshore

// Replaces the C library's fsync.
extern "C" int fsync(int fd) {
  longshore::note("sync " + longshore::path_of(fd));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  longshore::note("sync " + longshore::path_of(fd));
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  longshore::note(std::string("rename ") + from + " " + to);
  return static_cast<int>(::syscall(SYS_rename, from, to));
}
extern "C" int renameat2(int from_fd, const char* from, int to_fd, const char* to,
                         unsigned flags) noexcept {
  longshore::note(std::string("rename ") + from + " " + to);
  return static_cast<int>(::syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

namespace longshore {
namespace {

class DurableOrder : public testing::Test {
 protected:
  DurableOrder() {
    const std::lock_guard lock(mutex);
    recorded = &events_;
  }
  ~DurableOrder() override {
    const std::lock_guard lock(mutex);
    recorded = nullptr;
  }

  // Returns the index of the first event from `from` on that has all of the parts; -1 without one.
  int64_t find(const std::vector<std::string>& parts, int64_t from = 0) const {
    for (size_t i = static_cast<size_t>(std::max<int64_t>(from, 0)); i < events_.size(); ++i) {
      const auto has = [&](const std::string& part) {
        return events_[i].find(part) != std::string::npos;
      };
      if (std::ranges::all_of(parts, has)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  // Returns the index of the event that is exactly this; -1 without one.
  int64_t find_exactly(const std::string& event, int64_t from) const {
    for (auto i = static_cast<size_t>(std::max<int64_t>(from, 0)); i < events_.size(); ++i) {
      if (events_[i] == event) return static_cast<int64_t>(i);
    }
    return -1;
  }
  std::string all() const {
    std::string text;
    for (const std::string& event : events_) text += "\n" + event;
    return text;
  }

  std::vector<std::string> events_;
  const TemporaryDirectory directory_;
  const std::string folder_ =
      std::filesystem::canonical(directory_.path()).string() + "/checkpoints";
};

// Goal: a checkpoint under its final name is safe from power loss at any moment: its bytes,
// manifest and file names are durable before the rename.
TEST_F(DurableOrder, ACheckpointIsWholeBeforeItHasItsName) {
  RankState state(three_unit_spec(), {StateFormat::kSplit, DType::kBF16, DType::kBF16});
  state.fill();
  for (int round = 0; round < 2; ++round) {  // the second replaces the first
    events_.clear();
    save(folder_, state, 7);
    const std::string writing = folder_ + "/step-00000007.writing";
    const int64_t data = find({"sync " + writing + "/state-"});
    const int64_t names = find_exactly("sync " + writing, data);
    const int64_t text = find({"sync " + writing + "/manifest.json"}, names);
    const int64_t manifest = find({"rename ", " " + writing + "/manifest.json"}, text);
    const int64_t listed = find_exactly("sync " + writing, manifest);
    const int64_t placed = find({"rename " + writing + " " + folder_ + "/step-00000007"}, listed);
    const int64_t durable = find_exactly("sync " + folder_, placed);
    EXPECT_GE(data, 0) << all();
    EXPECT_GT(names, data) << all();
    EXPECT_GT(text, names) << all();
    EXPECT_GT(manifest, text) << all();
    EXPECT_GT(listed, manifest) << all();
    EXPECT_GT(placed, listed) << all();
    EXPECT_GT(durable, placed) << all();
    EXPECT_EQ(find({"rename " + writing + " "}), placed) << "not before" << all();
  }
}

// Goal: a durable write syncs the temporary file, renames it, and syncs the directory.
TEST_F(DurableOrder, AFileIsSyncedBeforeAndBehindItsRename) {
  make_directories(folder_);
  write_file_durably(folder_ + "/note", "text");
  ASSERT_EQ(events_.size(), 3u) << all();
  EXPECT_EQ(events_[0].rfind("sync " + folder_ + "/note", 0), 0u) << all();
  EXPECT_EQ(events_[1].rfind("rename " + folder_ + "/note", 0), 0u) << all();
  EXPECT_TRUE(events_[1].ends_with(" " + folder_ + "/note")) << all();
  EXPECT_EQ(events_[2], "sync " + folder_) << all();
}

// Goal: old checkpoints are removed only after the new one is durable.
TEST_F(DurableOrder, OldCheckpointsGoBehindTheNewOne) {
  RankState state(three_unit_spec(), {StateFormat::kSplit, DType::kBF16, DType::kBF16});
  save(folder_, state, 1, 1);
  events_.clear();
  save(folder_, state, 2, 1);
  const int64_t placed = find({"rename ", " " + folder_ + "/step-00000002"});
  const int64_t durable = find_exactly("sync " + folder_, placed);
  const int64_t removed = find({"rename " + folder_ + "/step-00000001 "});
  EXPECT_GE(placed, 0) << all();
  EXPECT_GT(durable, placed) << all();
  EXPECT_GT(removed, durable) << all();
}

}  // namespace
}  // namespace longshore
