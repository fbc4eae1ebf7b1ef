#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <thread>
#include <vector>

#include "base/direct_reader.h"
#include "base/errors.h"

namespace longshore {
namespace {

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "file_test_XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { remove_tree(directory_); }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  std::string directory_;
};

// Returns the text of the IoError that `action` throws.
template <typename Action>
std::string io_error_of(Action action) {
  try {
    action();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no IoError";
}

// A durable write replaces the file and leaves no temporary file.
TEST_F(FileTest, WritesDurablyAndReadsBack) {
  write_file_durably(path("a.txt"), "first");
  write_file_durably(path("a.txt"), std::string("sec\0nd", 6));
  EXPECT_EQ(read_whole_file(path("a.txt"), 100), std::string("sec\0nd", 6));
  // No temporary file is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

// A durable write that fails keeps what stood at the path and leaves no temporary file.
TEST_F(FileTest, ADurableWriteThatFailsLeavesTheOldFileAndNoOther) {
  std::filesystem::create_directory(path("taken"));
  write_file_durably(path("taken/inside"), "x");
  EXPECT_NE(io_error_of([&] { write_file_durably(path("taken"), "y"); }).find("rename to"),
            std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
}

// Errors name the operation, the path and the system's reason.
TEST_F(FileTest, ErrorsNameOperationPathAndReason) {
  EXPECT_EQ(io_error_of([&] { open_for_reading(path("absent")); }),
            "open " + path("absent") + ": No such file or directory");
  EXPECT_EQ(io_error_of([&] { create_file(path("absent/file")); }),
            "create " + path("absent/file") + ": No such file or directory");
  EXPECT_EQ(io_error_of([&] { read_whole_file(directory_, 10); }),
            "open " + directory_ + ": is a directory");
}

// read_exact_at() reads exactly the range that it is asked for.
TEST_F(FileTest, ReadsExactlyTheRangeAsked) {
  write_file_durably(path("a"), "0123456789");
  const UniqueFd fd = open_for_reading(path("a"));
  EXPECT_EQ(file_bytes(fd), 10);
  std::vector<std::byte> bytes(4);
  read_exact_at(fd, 3, bytes);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "3456");
  read_exact_at(fd, 10, {});
}

// A read beyond the end of a file throws and names the file's size.
TEST_F(FileTest, RefusesToReadPastTheEnd) {
  write_file_durably(path("a"), "0123456789");
  const UniqueFd fd = open_for_reading(path("a"));
  std::vector<std::byte> bytes(4);
  EXPECT_EQ(io_error_of([&] { read_exact_at(fd, 8, bytes); }),
            "read (offset 8, 4 bytes) " + path("a") + ": the file ends at byte 10");
}

// write_exact_at() writes at the given offsets, in any order.
TEST_F(FileTest, WritesAtOffsets) {
  {
    const UniqueFd fd = create_file(path("a"));
    write_exact_at(fd, 4, bytes_of("tail"));
    write_exact_at(fd, 0, bytes_of("head"));
    sync_file(fd);
  }
  EXPECT_EQ(read_whole_file(path("a"), 8), "headtail");
}

// A file longer than the limit is refused; one of exactly the limit is read.
TEST_F(FileTest, ReadsAFileOfExactlyTheLimitAndRefusesALongerOne) {
  write_file_durably(path("a"), std::string(100, 'x'));
  EXPECT_EQ(read_whole_file(path("a"), 100).size(), 100u);
  EXPECT_THROW(read_whole_file(path("a"), 99), DataError);
}

// An input may be a pipe; it is read to its end.
TEST_F(FileTest, ReadsAPipeToItsEndWhereItIsAnInput) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread writer([&] { write_all(create_file(path("pipe")), std::string(200'000, 'y')); });
  EXPECT_EQ(read_input(path("pipe"), 1 << 20).size(), 200'000u);
  writer.join();
}

// The wait for a pipe's writer ends at its time limit.
TEST_F(FileTest, WaitsForAPipesWriterAWhileOnly) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const UniqueFd fd(::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK), path("pipe"));
  EXPECT_EQ(io_error_of([&] { wait_for_writer(fd, std::chrono::milliseconds(20)); }),
            "read " + path("pipe") + ": a pipe without a writer");
  const UniqueFd writer = create_file(path("pipe"));
  write_all(writer, "x");
  wait_for_writer(fd, std::chrono::hours(1));
}

// Goal: a pipe or device at the path of a regular file is refused at once, without waiting.
TEST_F(FileTest, RefusesPipesAndDevicesAtOnce) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  for (const std::string& other : {path("pipe"), std::string("/dev/zero")}) {
    const std::string message = "open " + other + ": not a regular file";
    EXPECT_EQ(io_error_of([&] { open_for_reading(other); }), message);
    EXPECT_EQ(io_error_of([&] { read_whole_file(other, 1 << 20); }), message);
  }
}

// A moved UniqueFd closes its descriptor once.
TEST_F(FileTest, AMovedDescriptorIsClosedOnce) {
  write_file_durably(path("a"), "x");
  UniqueFd first = open_for_reading(path("a"));
  const int number = first.get();
  UniqueFd second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.get(), number);
  second = UniqueFd();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

// Goal: a run does not write through a link, pipe or device at the path of its own file.
TEST_F(FileTest, OwnFilesAreRegularFilesAndNoLinks) {
  const std::string target = path("target"), link = path("link"), pipe = path("pipe");
  write_file_durably(target, "old");
  std::filesystem::create_symlink(target, link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT, O_WRONLY | O_APPEND, O_RDWR}) {
    EXPECT_THROW(open_own_file(link, flags), IoError) << flags;
    EXPECT_THROW(open_own_file(pipe, flags), IoError) << flags;
  }
  EXPECT_THROW(open_for_reading(pipe), IoError);
  EXPECT_EQ(read_to_end(open_for_reading(link), 10), "old") << "reading may follow";
  const std::string second = path("second");
  std::filesystem::create_hard_link(target, second);
  EXPECT_THROW(open_own_file(second, O_WRONLY | O_CREAT), IoError);
  EXPECT_THROW(open_own_file(target, O_RDWR), IoError) << "either name";
  EXPECT_EQ(read_to_end(open_own_file(second, O_RDONLY), 10), "old");
  std::filesystem::remove(second);
  EXPECT_TRUE(open_own_file(target, O_RDWR).valid());
  write_file_durably(link, "new");
  replace_file(pipe, "new");
  EXPECT_EQ(read_whole_file(target, 10), "old");
  EXPECT_EQ(read_whole_file(link, 10), "new");
  EXPECT_EQ(read_whole_file(pipe, 10), "new");
  std::filesystem::create_directory(path("directory"));
  std::filesystem::create_directory_symlink(path("directory"), path("directory-link"));
  EXPECT_THROW(make_own_directory(path("directory-link")), IoError);
  make_own_directory(path("directory"));
}

// An output file that the user names may be a device or a link.
TEST_F(FileTest, OutputsThatAUserNamedMayBeDevicesAndLinks) {
  EXPECT_THROW(write_output_file("/dev/full", "text"), IoError);
  write_output_file("/dev/null", "text");
  write_file_durably(path("target"), "old");
  std::filesystem::create_symlink(path("target"), path("link"));
  write_output_file(path("link"), "new");
  EXPECT_TRUE(is_symbolic_link(path("link")));
  EXPECT_EQ(read_whole_file(path("target"), 10), "new");
}

// Only names that a durable write gives to its temporary files are recognized as such.
TEST_F(FileTest, TemporaryNamesAreKnownAgain) {
  EXPECT_TRUE(is_temporary_of("run.json.tmp.0123456789abcdef", "run.json"));
  for (const char* name : {"run.json", "run.json.tmp.", "run.json.tmp.7056",
                           "x.tmp.0123456789abcdef", "run.json.tmp.0123456789abcdeg"}) {
    EXPECT_FALSE(is_temporary_of(name, "run.json")) << name;
  }
}

// remove_tree() does not follow links and accepts a missing tree.
TEST_F(FileTest, RemovesTreesWithoutFollowingLinks) {
  make_directories(path("tree/deep/er"));
  write_file_durably(path("kept"), "x");
  std::filesystem::create_symlink(path("kept"), path("tree/link"));
  remove_tree(path("tree"));
  remove_tree(path("tree"));
  EXPECT_FALSE(std::filesystem::exists(path("tree")));
  EXPECT_TRUE(std::filesystem::exists(path("kept")));
}

constexpr Bytes kBlock = 4096;

std::span<std::byte> block_aligned(std::vector<std::byte>& memory) {
  const auto address = static_cast<Bytes>(reinterpret_cast<uintptr_t>(memory.data()));
  return std::span(memory).subspan(static_cast<size_t>(align_up(address, kBlock) - address));
}

// Any range of a file has the bytes that read_exact_at gives, with and without direct I/O of the
// file system, at any address, also after the file's name is gone.
TEST_F(FileTest, ReadsAnyRangePastTheCache) {
  constexpr Bytes kSize = 2 * DirectReader::kWindowBytes + 12345;
  std::vector<std::byte> bytes(kSize);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 9);
  for (const std::string& name : {path("on_disk"), std::string("/dev/shm/longshore_file_test_") +
                                                       std::to_string(::getpid())}) {
    write_exact_at(create_file(name), 0, bytes);
    const UniqueFd fd = open_for_reading(name);
    const DirectReader reader(fd);
    remove_tree(name);
    const Bytes window = DirectReader::kWindowBytes;
    for (const Bytes begin : {Bytes{0}, Bytes{1}, Bytes{4095}, Bytes{4096}, window - 7, window}) {
      for (const Bytes wanted :
           {Bytes{0}, Bytes{1}, Bytes{513}, Bytes{8192}, window, kSize - begin}) {
        const auto bytes_wanted = static_cast<size_t>(wanted);
        std::vector<std::byte> memory(bytes_wanted + 2 * size_t{kBlock}), expected(bytes_wanted);
        read_exact_at(fd, begin, expected);
        // The first place lets whole blocks of the file go to whole blocks of memory.
        for (const Bytes place : {begin % kBlock, begin % kBlock + 1}) {
          const std::span<std::byte> read =
              block_aligned(memory).subspan(static_cast<size_t>(place), bytes_wanted);
          reader.read(begin, read);
          ASSERT_TRUE(std::ranges::equal(read, expected))
              << name << ": " << wanted << " bytes from " << begin << " to " << place;
        }
      }
    }
    std::vector<std::byte> more(100);
    std::vector<std::byte> many(kSize + 2 * kBlock);
    for (const std::string& error :
         {io_error_of([&] { reader.read(kSize - 99, more); }),
          io_error_of([&] { reader.read(0, block_aligned(many).first(kSize + kBlock)); })}) {
      EXPECT_NE(error.find("the file ends at byte " + std::to_string(kSize)), std::string::npos)
          << error;
      EXPECT_NE(error.find(name), std::string::npos) << error;
    }
  }
}

}  // namespace
}  // namespace longshore
