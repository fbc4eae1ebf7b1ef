// Data files that change, and what others may have put into the cache of prepared data.
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "data/prepare/prepared_cache.h"
#include "tests/data/prepare_fixture.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Longer than a file has to be unchanged before its hash is noted.
constexpr useconds_t kUntilSettled = 4'200'000;

std::string rows_of(const std::string& word, int rows) {
  std::string content;
  for (int row = 0; row < rows; ++row) {
    content += "{\"text\": \"" + word + " " + std::to_string(row) + "\"}\n";
  }
  return content;
}

// Writes other bytes of the same number in place, and sets the times of before.
void change_in_place(const std::string& path, const std::string& content) {
  struct stat before{};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  ASSERT_EQ(before.st_size, static_cast<off_t>(content.size()));
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC), path);
  write_exact_at(fd, 0, bytes_of(content));
  const std::array<struct timespec, 2> times = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::futimens(fd.get(), times.data()), 0);
}

// MappedFile: a file that is written through a mapping, which moves its times rarely.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) : bytes_(fs::file_size(path)) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC), path);
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(data_, MAP_FAILED);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() { ::munmap(data_, bytes_); }

  void write(const std::string& content) const {
    std::memcpy(data_, content.data(), std::min(bytes_, content.size()));
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

class DataFiles : public PrepareFixture {
 protected:
  DataFiles() { options_.data.max_tokens = 4096; }

  std::string first_text() { return text_of(tokens_of(load(), 0)); }

  // In a file system in memory no hash is noted, since stores through mappings move no time there.
  bool on_a_disk() const {
    struct statfs system{};
    EXPECT_EQ(::statfs(files_.path("").c_str(), &system), 0);
    return system.f_type != TMPFS_MAGIC && system.f_type != RAMFS_MAGIC;
  }

  std::vector<std::string> entries(const std::string& extension) const {
    std::vector<std::string> found;
    for (const auto& file : fs::directory_iterator(options_.cache)) {
      if (file.path().extension() == extension) found.push_back(file.path().string());
    }
    return found;
  }

  // Leaves an unfinished entry, as a killed process does, and returns its directory.
  std::string unfinished() {
    options_.files = {files_.write("rows.jsonl", rows_of("word", 20'000))};
    options_.save_every_bytes = 64 * kKiB;
    options_.threads = 1;
    options_.on_progress = [](const PrepareProgress& progress) {
      if (progress.tokens > 100'000) throw Error(ExitCode::kFailure, "stop");
    };
    EXPECT_THROW(prepare_or_open(options_), Error);
    options_.on_progress = {};
    return entries(".partial").at(0);
  }

  std::string bytes_of_entry() {
    const std::string path = prepare_or_open(options_).paths.at(0);
    return read_whole_file(path, kGiB);
  }
};

// Goal: a file that was changed in place is read again, though its size and time are kept.
TEST_F(DataFiles, AreReadAgainAfterAChangeThatKeepsSizeAndTime) {
  const std::string path = files_.write("rows.jsonl", rows_of("word", 10));
  const std::string mapped = files_.write("mapped.jsonl", rows_of("word", 10));
  const MappedFile mapping(mapped);
  mapping.write(rows_of("some", 10));  // its page stays unwritten for a while
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  options_.files = {path};
  EXPECT_EQ(first_text(), "word 0</s>");
  change_in_place(path, rows_of("soon", 10));
  EXPECT_EQ(first_text(), "soon 0</s>") << "at once";

  if (!on_a_disk()) GTEST_SKIP() << "the temporary directory is in memory";
  ::usleep(kUntilSettled);
  EXPECT_EQ(first_text(), "soon 0</s>");
  EXPECT_EQ(entries(".content").size(), 1u);
  EXPECT_TRUE(report_of_prepared(options_)) << "known without being read";
  change_in_place(path, rows_of("late", 10));
  EXPECT_FALSE(report_of_prepared(options_));
  EXPECT_EQ(first_text(), "late 0</s>");

  options_.files = {mapped};
  EXPECT_EQ(first_text(), "some 0</s>");
  mapping.write(rows_of("more", 10));
  EXPECT_EQ(first_text(), "more 0</s>");
}

// Goal: another mode, a copy or a restored backup costs a reading, and neither tokens nor a run.
TEST_F(DataFiles, KeepTheirEntryUnderAnotherStatus) {
  options_.files = {files_.write("rows.jsonl", rows_of("word", 10))};
  const PreparedData before = prepare_or_open(options_);
  ::chmod(options_.files[0].c_str(), 0600);
  EXPECT_EQ(prepare_or_open(options_).made, 0);
  fs::copy_file(options_.files[0], files_.path("copy.jsonl"));
  options_.files = {files_.path("copy.jsonl")};
  const PreparedData after = prepare_or_open(options_);
  EXPECT_EQ(after.made, 0);
  EXPECT_EQ(after.files[0]->fingerprint(), before.files[0]->fingerprint());
}

// Goal: what stands in the place of a note is never trusted, and stops nobody.
TEST_F(DataFiles, AreReadWhereTheirNoteIsNone) {
  options_.files = {files_.write("rows.jsonl", rows_of("word", 10))};
  if (!on_a_disk()) GTEST_SKIP() << "the temporary directory is in memory";
  ::usleep(kUntilSettled);
  load();
  const std::string note = entries(".content").at(0);
  const std::string noted = read_whole_file(note, kKiB);
  const auto replace = [&](const std::function<void()>& by) {
    remove_tree(note);
    by();
    EXPECT_EQ(prepare_or_open(options_).made, 0);
  };
  replace([&] { ASSERT_EQ(::mkfifo(note.c_str(), 0600), 0); });
  EXPECT_EQ(read_whole_file(note, kKiB), noted) << "it is written again";
  replace([&] { write_file_durably(note, std::string(2000, 'a')); });
  EXPECT_EQ(read_whole_file(note, kKiB), noted);
  replace([&] { fs::create_symlink(files_.write("link.content", "0123456789abcdef"), note); });
  replace([&] { fs::create_directory(note); });
}

// Goal: a file that changes between its hash and its tokens is refused, whatever shows the change.
TEST_F(DataFiles, AreRefusedWhenTheyChangeWhileTheyAreRead) {
  const std::string path = files_.write("rows.jsonl", rows_of("word", 2000));
  options_.files = {path};
  options_.threads = 1;
  const auto refused = [&](const std::function<void()>& change) {
    bool done = false;
    options_.on_progress = [&](const PrepareProgress& progress) {
      if (progress.tokens > 0 && !std::exchange(done, true)) change();
    };
    try {
      prepare_or_open(options_);
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("changed while it was read"), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(done);
    EXPECT_TRUE(entries(".partial").empty() && entries(".tok").empty());
  };
  refused([&] { change_in_place(path, rows_of("some", 2000)); });
  refused([&] { fs::resize_file(path, 1000); });
  files_.write("rows.jsonl", rows_of("word", 2000));
  const MappedFile mapping(path);
  mapping.write(rows_of("some", 2000));
  // This store moves no time, since the pages were written before.
  refused([&] { mapping.write(rows_of("more", 2000)); });
  options_.on_progress = {};
  EXPECT_EQ(first_text(), "more 0</s>");
}

// Goal: what a killed process left is compared with its checksums before a process goes on from it.
TEST_F(DataFiles, AreBegunAnewWhereAPartIsDamaged) {
  const std::string partial = unfinished();
  const fs::path kept = files_.path("kept");
  fs::copy(partial, kept);
  const std::string whole = bytes_of_entry();
  const std::string entry = prepare_or_open(options_).paths.at(0);
  for (const std::string name : {"", "ids", "trained", "ends", "progress.json"}) {
    remove_tree(entry);
    fs::copy(kept, partial);
    if (!name.empty()) {
      const UniqueFd fd = open_own_file(partial + "/" + name, O_RDWR);
      std::array<std::byte, 1> byte;
      read_exact_at(fd, 100, byte);
      byte[0] ^= std::byte{4};
      write_exact_at(fd, 100, byte);
    }
    testing::internal::CaptureStderr();
    EXPECT_EQ(bytes_of_entry(), whole) << name;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("cannot be used") == std::string::npos, name.empty()) << name << said;
    EXPECT_EQ(said.find("resuming after line") != std::string::npos, name.empty()) << said;
  }
}

// Goal: nobody who may write in a shared cache can have another's file written, or a process wait,
// by what is put in the place of a part: links, pipes and directories, also of the right content.
TEST_F(DataFiles, AreBegunAnewWhereAPartIsNoFileOfItsOwn) {
  const std::string partial = unfinished();
  const fs::path kept = files_.path("kept");
  fs::copy(partial, kept);
  const std::string whole = bytes_of_entry();
  const std::string entry = prepare_or_open(options_).paths.at(0);
  const std::string precious = read_whole_file((kept / "ids").string(), kGiB);
  const std::string victim = files_.path("victim"), part = partial + "/ids";
  const auto attack = [&](const std::string& name, const std::function<void()>& put) {
    remove_tree(entry);
    remove_tree(partial);
    fs::copy(kept, partial);
    remove_tree(victim);
    fs::copy(kept / "ids", victim);
    remove_tree(part);
    put();
    EXPECT_EQ(bytes_of_entry(), whole) << name;
    EXPECT_EQ(read_whole_file(victim, kGiB), precious) << name;
    EXPECT_FALSE(fs::exists(fs::symlink_status(partial))) << name;
  };
  attack("symbolic link", [&] { fs::create_symlink(victim, part); });
  attack("hard link", [&] { fs::create_hard_link(victim, part); });
  attack("pipe", [&] { ASSERT_EQ(::mkfifo(part.c_str(), 0600), 0); });
  attack("directory", [&] { fs::create_directory(part); });
  attack("its own directory", [&] {
    remove_tree(partial);
    const std::string elsewhere = files_.path("elsewhere");
    remove_tree(elsewhere);
    fs::copy(kept, elsewhere);
    remove_tree(elsewhere + "/ids");
    fs::rename(victim, elsewhere + "/ids");
    fs::create_symlink(elsewhere + "/ids", victim);
    fs::create_directory_symlink(elsewhere, partial);
  });
  attack("the new entry", [&] { fs::create_symlink(victim, entry + ".writing"); });
}

// Goal: no pipe, link or directory at the name of an entry is waited for or used.
TEST_F(DataFiles, RefuseAnEntryThatIsNoFile) {
  options_.files = {files_.write("rows.jsonl", rows_of("word", 10))};
  const std::string entry = prepare_or_open(options_).paths.at(0);
  fs::rename(entry, files_.path("moved"));
  fs::create_symlink(files_.path("moved"), entry);
  EXPECT_THROW(prepare_or_open(options_), IoError);
  fs::remove(entry);
  fs::create_directory(entry);
  EXPECT_THROW(prepare_or_open(options_), IoError);
  fs::remove(entry);
  ASSERT_EQ(::mkfifo(entry.c_str(), 0600), 0);
  EXPECT_THROW(prepare_or_open(options_), IoError);
  EXPECT_EQ(clean_cache(options_.cache, 0).files, 0);
  fs::remove(entry);
  EXPECT_EQ(prepare_or_open(options_).made, 1);
}

}  // namespace
}  // namespace longshore
