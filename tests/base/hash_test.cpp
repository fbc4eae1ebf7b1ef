#include "base/hash.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

// The reference value of the empty input and one of a known text, from xxHash's own tools: files
// written on one machine are checked on another.
TEST(Hash, IsXxh3OfSixtyFourBits) {
  EXPECT_EQ(hash_text(hash64("")), "2d06800538d394c2");
  EXPECT_EQ(hash_text(hash64("longshore")), hash_text(Hasher().update("longshore").digest()));
}

TEST(Hash, PiecesGiveTheHashOfTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{255}, size_t{256}, size_t{4999}}) {
    Hasher hasher;
    hasher.update(text.substr(0, cut)).update(text.substr(cut));
    EXPECT_EQ(hasher.digest(), hash64(text)) << cut;
  }
}

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
