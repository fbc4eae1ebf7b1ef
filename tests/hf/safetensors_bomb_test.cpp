// Resource bombs: files that are made to cost memory or time.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "hf/safetensors_reader.h"
#include "tests/fakes/sanitizer.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

// Sanitizers need memory of their own, so only the refusal counts under them.
constexpr bool kMeasuresMemory = !kSanitized;

struct Bomb {
  std::string what;
  std::function<std::string()> header;  // of 64 MiB or less
  Bytes file_bytes = 0;                 // size after extension by a hole; 0: unchanged
  std::string error_part;
  Bytes allowed_bytes = 0;  // of memory besides the header
};

std::string repeated(const std::string& start, const std::string& part) {
  std::string out = start;
  out.reserve(static_cast<size_t>(kMaxSafetensorsHeaderBytes));
  while (static_cast<Bytes>(out.size() + part.size()) <= kMaxSafetensorsHeaderBytes) out += part;
  return out;
}

const std::string kEntry = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";

std::vector<Bomb> bombs() {
  return {
      {"OneTebibyteOfHoles", [] { return std::string("{}"); }, kGiB * 1024, "but no tensors",
       8 * kMiB},
      {"EndlessShape", [] { return repeated(R"({"a":{"shape":[)", "1,"); }, 0, "8 dimensions",
       8 * kMiB},
      {"EndlessNesting", [] { return repeated(R"({"a":)", "["); }, 0, "expected '{'", 8 * kMiB},
      {"EndlessBraces", [] { return repeated("{\"a\":", "{"); }, 0, "expected '\"'", 8 * kMiB},
      {"EndlessName", [] { return repeated("{\"", "n"); }, 0, "longer than 1.0 KiB", 8 * kMiB},
      {"EndlessMetadataValue", [] { return repeated(R"({"__metadata__":{"a":")", "v"); }, 0,
       "longer than 8.0 MiB", 32 * kMiB},
      {"EndlessMetadata", [] { return repeated(R"({"__metadata__":{"":"")", R"(,"":"")"); }, 0,
       "more than 65536 entries", 16 * kMiB},
      // Every entry is well formed, so this one is read up to the limit of a million tensors.
      {"TooManyTensors", [] { return repeated("{" + kEntry, "," + kEntry); }, 0,
       "more than 1000000 tensors", 192 * kMiB},
  };
}

void PrintTo(const Bomb& bomb, std::ostream* out) {
  *out << bomb.what;
}

class ResourceBomb : public testing::TestWithParam<Bomb> {};

Bytes peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * kKiB;
}

// Opens the bomb in a new process; exit code 0: it was refused within its limit of memory.
int open_bomb(const std::string& path, Bytes header_bytes, const Bomb& bomb) {
  const Bytes before = peak_rss_bytes();
  const auto start = std::chrono::steady_clock::now();
  std::string error;
  try {
    SafetensorsFile::open(path);
  } catch (const DataError& caught) {
    error = caught.what();
  }
  const Bytes grown = peak_rss_bytes() - before;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (error.find(bomb.error_part) == std::string::npos) {
    std::fprintf(stderr, "error: %s\n", error.c_str());
    return 1;
  }
  std::fprintf(stderr, "%s: %s, %.3f s\n", bomb.what.c_str(), format_bytes(grown).c_str(),
               seconds.count());
  return !kMeasuresMemory || grown <= header_bytes + bomb.allowed_bytes ? 0 : 2;
}

// Every bomb is refused within its limit of memory.
TEST_P(ResourceBomb, IsRefusedInBoundedMemory) {
  const TemporaryDirectory directory;
  const std::string path = directory / "bomb.safetensors";
  Bytes header_bytes = 0;
  {
    const std::string header = GetParam().header();
    header_bytes = static_cast<Bytes>(header.size());
    write_text(path, safetensors_bytes(header, 0));
  }
  if (GetParam().file_bytes > 0) {
    std::filesystem::resize_file(path, static_cast<uintmax_t>(GetParam().file_bytes));
  }
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(open_bomb(path, header_bytes, GetParam()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1 = another error, 2 = too much memory";
}

INSTANTIATE_TEST_SUITE_P(Files, ResourceBomb, testing::ValuesIn(bombs()),
                         [](const auto& info) { return info.param.what; });

// A header over the limit is refused before it is read.
TEST(SafetensorsFile, RefusesAHeaderOverTheLimitBeforeReadingIt) {
  const TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  std::string bytes(8, '\0');
  bytes[3] = 5;  // 5 x 2^24 bytes
  write_text(path, bytes);
  std::filesystem::resize_file(path, uintmax_t{1} << 40);
  const std::string error = error_of<DataError>([&] { SafetensorsFile::open(path); });
  expect_parts(error, {path, "83886080", "at most 67108864"});
}

}  // namespace
}  // namespace longshore
