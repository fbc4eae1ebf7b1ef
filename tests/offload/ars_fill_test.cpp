// Random bits computed in bulk equal those of single calls.
#include "offload/optimizer/ars_fill.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/processor.h"
#include "shard/moments.h"

#if defined(__x86_64__)
namespace longshore {
namespace {

void expect_calls(internal::ArsFill fill) {
  const ArsKey key = {0x0123456789abcdefu, 0xfedcba9876543210u};
  const internal::ArsRoundKeys keys(key);
  // The ranges begin inside a counter's block and cross the end of the counter.
  for (uint64_t first :
       {uint64_t{0}, uint64_t{1} << 5, (uint64_t{1} << 32) - 3, ~uint64_t{0} - 7}) {
    const uint64_t update = (uint64_t{7} << 32) + first % 11;
    alignas(32) uint8_t filled[16 * internal::kFillCalls];
    fill(keys, first, update, filled);
    for (uint64_t call = 0; call < internal::kFillCalls; ++call) {
      const auto words = random_words({.key = key, .update = update}, first + call);
      ASSERT_EQ(std::memcmp(filled + 16 * call, words.data(), 16), 0) << first << " + " << call;
    }
  }
}

// 128-bit AES gives the bits of single calls.
TEST(ArsFill, GivesTheBitsOfSingleCallsWithAesOf128Bits) {
  if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("avx")) {
    GTEST_SKIP() << "not run: no AES";
  }
  expect_calls(internal::fill_by_aes);
}

// 256-bit AES gives the bits of single calls.
TEST(ArsFill, GivesTheBitsOfSingleCallsWithAesOf256Bits) {
  if (!cpu_has_vaes()) GTEST_SKIP() << "not run: no VAES";
  expect_calls(internal::fill_by_vaes);
}

}  // namespace
}  // namespace longshore
#endif
