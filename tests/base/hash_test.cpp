#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

namespace longshore {
namespace {

// The hash equals the reference implementation (python-xxhash) at lengths on both sides of each
// branch, because files written on one machine are checked on another.
TEST(Hash, IsXxh3OfSixtyFourBits) {
  EXPECT_EQ(hash_text(hash64("")), "2d06800538d394c2");
  EXPECT_EQ(hash_text(hash64("longshore")), "4750ac137ab109d6");
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  const std::pair<size_t, const char*> wanted[] = {
      {1, "c44bdff4074eecdb"},    {3, "3698b80191e625f9"},   {4, "2e4ac2f1c52157fc"},
      {8, "60e1baa91347a1f2"},    {9, "9c88fc32c37b56cb"},   {16, "f9fbd0260ba978df"},
      {17, "c56f339d36cc73d7"},   {128, "31ccf8dec850d035"}, {129, "c72af4c6ac4dea94"},
      {240, "e315d53d5129eede"},  {241, "18773c512b008a63"}, {1024, "4986ea1c273817c6"},
      {1025, "7775793e9ae60f68"}, {5000, "60b1c0ae31e84fef"}};
  for (const auto& [bytes, hash] : wanted) {
    EXPECT_EQ(hash_text(hash64(text.substr(0, bytes))), hash) << bytes;
  }
}

// Hashing a text in two pieces gives the hash of the whole text.
TEST(Hash, PiecesGiveTheHashOfTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{255}, size_t{256}, size_t{4999}}) {
    Hasher hasher;
    hasher.update(text.substr(0, cut)).update(text.substr(cut));
    EXPECT_EQ(hasher.digest(), hash64(text)) << cut;
  }
}

// Only 16 lower-case hexadecimal digits are read as a hash.
TEST(Hash, TextFormIsReadBackAndNothingElseIs) {
  EXPECT_EQ(parse_hash(hash_text(0x0123456789abcdefu)), 0x0123456789abcdefu);
  EXPECT_EQ(parse_hash(hash_text(1)), 1u);
  for (const char* text : {"", "1", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF",
                           "0123456789abcdeg", "-123456789abcdef", " 123456789abcdef"}) {
    EXPECT_EQ(parse_hash(text), std::nullopt) << text;
  }
}

// Sums of parts add up to that of the whole wherever it is cut, also inside words of eight bytes,
// so that ranks with any shards agree.
TEST(PlaceSum, PartsAddUpToTheWhole) {
  std::vector<std::byte> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 7);
  const std::span<const std::byte> all(bytes);
  const uint64_t whole = place_sum(0, all);
  for (size_t first = 0; first <= 17; ++first) {
    for (const size_t second : {first, first + 1, first + 7, size_t{500}, size_t{993}}) {
      uint64_t sum = place_sum(0, all.first(first));
      sum += place_sum(static_cast<int64_t>(first), all.subspan(first, second - first));
      sum += place_sum(static_cast<int64_t>(second), all.subspan(second));
      EXPECT_EQ(sum, whole) << first << " " << second;
    }
  }
  EXPECT_EQ(place_sum(0, {}), 0u);
}

// One changed bit anywhere changes the sum, and so do equal values at another place: a file with
// other values, or with values that moved, is never taken for the same.
TEST(PlaceSum, KnowsEveryBitAndItsPlace) {
  std::vector<std::byte> bytes(67);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const uint64_t whole = place_sum(5, bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> other = bytes;
    other[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(place_sum(5, other), whole) << bit;
  }
  EXPECT_NE(place_sum(13, bytes), whole);
  std::swap_ranges(bytes.begin() + 3, bytes.begin() + 11, bytes.begin() + 19);
  EXPECT_NE(place_sum(5, bytes), whole);
}

}  // namespace
}  // namespace longshore
