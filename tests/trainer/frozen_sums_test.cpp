// Checksums of a frozen model in its files within a process.
#include "trainer/run/frozen_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

// A file whose bytes all have one value.
class EvenFile final : public FrozenSource {
 public:
  Bytes read(const std::string&, StorageType, Bytes, std::span<std::byte> out) const override {
    std::ranges::fill(out, value);
    return static_cast<Bytes>(out.size());
  }
  std::string place_of(const std::string& name) const override { return "file of " + name; }
  std::byte value{1};
};

void read(const FrozenSums& sums, const std::string& name, Bytes begin, StorageType type) {
  std::vector<std::byte> out(64);
  EXPECT_EQ(sums.read(name, type, begin, out), 64);
}

// The second read of a part must give the values of the first; other parts are checked apart.
TEST(FrozenSums, RefuseValuesThatChanged) {
  EvenFile file;
  const FrozenSums sums(&file);
  read(sums, "w", 0, StorageType::kBF16);
  read(sums, "w", 0, StorageType::kBF16);
  file.value = std::byte{2};
  read(sums, "w", 64, StorageType::kBF16);
  read(sums, "w", 0, StorageType::kF32);
  try {
    read(sums, "w", 0, StorageType::kBF16);
    ADD_FAILURE() << "the change was not found";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()).find("file of w: elements from 0 have other values"), 0u)
        << error.what();
  }
}

}  // namespace
}  // namespace longshore
