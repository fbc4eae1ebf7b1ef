// Checksums of a frozen model in its files: within a process, kept for later ones, and damaged.
#include "trainer/run/frozen_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/errors.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

// A file whose bytes all have one value.
class EvenFile final : public FrozenSource {
 public:
  Bytes read(const std::string&, int64_t, DType, std::span<std::byte> out) const override {
    std::ranges::fill(out, value);
    return static_cast<Bytes>(out.size());
  }
  std::string place_of(const std::string& name) const override { return "file of " + name; }
  std::byte value{1};
};

void read(const FrozenSums& sums, const std::string& name, int64_t begin, DType dtype) {
  std::vector<std::byte> out(64);
  EXPECT_EQ(sums.read(name, begin, dtype, out), 64);
}

// The second read of a part must give the values of the first; other parts are checked apart.
TEST(FrozenSums, RefuseValuesThatChanged) {
  EvenFile file;
  const FrozenSums sums(&file);
  read(sums, "w", 0, DType::kBF16);
  read(sums, "w", 0, DType::kBF16);
  file.value = std::byte{2};
  read(sums, "w", 32, DType::kBF16);
  read(sums, "w", 0, DType::kF32);
  try {
    read(sums, "w", 0, DType::kBF16);
    ADD_FAILURE() << "the change was not found";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()).find("file of w: elements from 0 have other values"), 0u)
        << error.what();
  }
}

// A later process compares with what every rank of an earlier one read, until the run starts over.
TEST(FrozenSums, ComparesWithEarlierProcesses) {
  const TemporaryDirectory run;
  EvenFile file;
  for (const int32_t rank : {0, 1}) {
    FrozenSums sums(&file);
    read(sums, "w", 32 * rank, DType::kBF16);
    sums.keep(run.path(), Rank(rank));
  }
  file.value = std::byte{2};
  FrozenSums later(&file);
  later.load(run.path());
  EXPECT_THROW(read(later, "w", 0, DType::kBF16), CheckpointError);
  EXPECT_THROW(read(later, "w", 32, DType::kBF16), CheckpointError);
  read(later, "w", 64, DType::kBF16);
  FrozenSums::forget(run.path());
  FrozenSums over(&file);
  over.load(run.path());
  read(over, "w", 0, DType::kBF16);
}

// Nothing is written where nothing is new.
TEST(FrozenSums, KeepOnlyWhatIsNew) {
  const TemporaryDirectory run;
  const EvenFile file;
  FrozenSums sums(&file);
  sums.keep(run.path(), Rank(0));
  EXPECT_FALSE(std::filesystem::exists(run.file("frozen")));
  read(sums, "w", 0, DType::kF32);
  sums.keep(run.path(), Rank(0));
  std::filesystem::remove_all(run.file("frozen"));
  read(sums, "w", 0, DType::kF32);
  sums.keep(run.path(), Rank(0));
  EXPECT_FALSE(std::filesystem::exists(run.file("frozen")));
}

// A damaged file is named; other files in the folder are not touched.
TEST(FrozenSums, RefuseADamagedFile) {
  const TemporaryDirectory run;
  const EvenFile file;
  std::filesystem::create_directory(run.file("frozen"));
  std::ofstream(run.file("frozen/notes")) << "mine";
  for (const char* text :
       {"{}", "[", "[[\"w\", 0, 32, \"bf16\"]]", "[[\"w\", -1, 32, \"bf16\", \"0\"]]",
        "[[\"w\", 0, 32, \"i8\", \"0123456789abcdef\"]]"}) {
    std::ofstream(run.file("frozen/rank-0")) << text;
    FrozenSums sums(&file);
    try {
      sums.load(run.path());
      ADD_FAILURE() << text;
    } catch (const CheckpointError& error) {
      EXPECT_EQ(std::string(error.what()).find(run.file("frozen/rank-0") + ": "), 0u);
    }
  }
  FrozenSums::forget(run.path());
  EXPECT_FALSE(std::filesystem::exists(run.file("frozen/rank-0")));
  EXPECT_TRUE(std::filesystem::exists(run.file("frozen/notes")));
}

}  // namespace
}  // namespace longshore
