#include "base/hash.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace longshore
