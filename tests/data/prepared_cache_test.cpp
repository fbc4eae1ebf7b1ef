// Cleaning the cache of prepared data: the order in which entries go, and that entries in use stay.
#include "data/prepare/prepared_cache.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/data/prepare_fixture.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

class PreparedCache : public PrepareFixture {
 protected:
  // Makes the entry of a data file with this text, last used `hours` ago; no process has it open.
  std::string entry(const std::string& text, int hours) {
    options_.files = {files_.write(text + ".jsonl", "{\"text\": \"" + text + "\"}\n")};
    const std::string path = prepare_or_open(options_).paths.at(0);
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
    return path;
  }
  CacheCleaning clean(Bytes limit) const { return clean_cache(options_.cache, limit); }
};

// The least recently used entries are deleted until the cache is within its limit.
TEST_F(PreparedCache, LosesWhatWasUsedLongestAgoUntilItFits) {
  const std::string middle = entry("two", 2), oldest = entry("three", 3), newest = entry("one", 1);
  const Bytes each = static_cast<Bytes>(fs::file_size(oldest));
  EXPECT_EQ(clean(3 * each + 100).files, 0);
  const CacheCleaning cleaned = clean(2 * each + 100);
  EXPECT_EQ(cleaned.files, 1);
  EXPECT_GE(cleaned.bytes, each);
  EXPECT_FALSE(fs::exists(oldest));
  EXPECT_TRUE(fs::exists(middle) && fs::exists(newest));
  entry("two", 0);  // it is used once more
  EXPECT_EQ(clean(each + 100).files, 1);
  EXPECT_TRUE(fs::exists(middle));
  EXPECT_FALSE(fs::exists(newest));
  EXPECT_EQ(clean(0).left_bytes, 0);
  EXPECT_FALSE(fs::exists(fs::path(middle).replace_extension(".lock")));
}

// Entries that are open or being made are kept.
TEST_F(PreparedCache, KeepsWhatIsOpenOrBeingMade) {
  entry("open", 2);
  PreparedData open = prepare_or_open(options_);
  const std::string made = options_.cache + "/00000000000000aa";
  fs::create_directory(made + ".partial");
  files_.write("cache/00000000000000aa.partial/ids", "12345678");
  {
    const EntryLock maker(made + ".lock", [] {});
    EXPECT_EQ(clean(0).files, 0);
    EXPECT_TRUE(fs::exists(open.paths[0]) && fs::exists(made + ".partial"));
  }
  EXPECT_EQ(clean(0).files, 1) << "its maker is gone";
  EXPECT_FALSE(fs::exists(made + ".partial"));
  open.files.clear();
  EXPECT_EQ(clean(0).files, 1);
  EXPECT_FALSE(fs::exists(open.paths[0]));
}

// Files that are not the cache's own are kept.
TEST_F(PreparedCache, TouchesNothingThatIsNotItsOwn) {
  entry("own", 1);
  const std::string foreign = files_.write("cache/notes.tok", "mine");
  const std::string other = files_.write("cache/0123456789abcdef.txt", "mine");
  fs::create_symlink(foreign, options_.cache + "/0123456789abcdef.tok");
  EXPECT_EQ(clean(0).files, 1);
  EXPECT_TRUE(fs::exists(foreign) && fs::exists(other));
  EXPECT_TRUE(fs::is_symlink(options_.cache + "/0123456789abcdef.tok"));
  EXPECT_EQ(clean_cache(files_.path("missing"), 0).files, 0);
}

// Another process may finish an entry at any moment of the look for it: then the entry is there or
// not yet, which is no failure.
TEST_F(PreparedCache, LooksForAnEntryThatIsBeingFinished) {
  const std::string made = files_.write("made", "tokens");
  const std::string entry = files_.path("0000000000000003.tok");
  std::atomic<bool> done = false;
  std::thread maker([&] {
    while (!done) {
      fs::rename(made, entry);
      fs::rename(entry, made);
    }
  });
  int found = 0, missing = 0;
  EXPECT_NO_THROW({
    for (int i = 0; i < 20000; ++i) (use_entry(entry).valid() ? found : missing)++;
  });
  done = true;
  maker.join();
  EXPECT_EQ(found + missing, 20000);
}

// An entry's lock is on the file at its path, because a removed file would lock nothing.
TEST_F(PreparedCache, LocksTheFileThatIsThere) {
  const std::string path = files_.write("0000000000000001.lock", "");
  auto first = EntryLock::try_lock(path);
  ASSERT_TRUE(first);
  EXPECT_FALSE(EntryLock::try_lock(path));
  remove_tree(path);
  const auto second = EntryLock::try_lock(path);
  EXPECT_TRUE(second) << "another file of that name";
  EXPECT_FALSE(EntryLock::try_lock(path));
}

// Goal: nobody who may write in a shared cache can have another's file emptied by a link there.
TEST_F(PreparedCache, LocksChangeNothingBehindALink) {
  const std::string victim = files_.write("victim", "precious");
  const std::string link = files_.path("0000000000000001.lock");
  fs::create_symlink(victim, link);
  EXPECT_THROW(EntryLock::try_lock(link), IoError);
  fs::remove(link);
  fs::create_hard_link(victim, link);
  EXPECT_THROW(EntryLock::try_lock(link), IoError);
  EXPECT_EQ(read_whole_file(victim, kKiB), "precious");
}

// A deleted entry is made again.
TEST_F(PreparedCache, MakesAnEntryAnewThatWasCleaned) {
  const std::string path = entry("again", 1);
  EXPECT_EQ(clean(0).files, 1);
  EXPECT_EQ(prepare_or_open(options_).made, 1);
  EXPECT_TRUE(fs::exists(path));
}

}  // namespace
}  // namespace longshore
