// Sums of what is read of weight files: each byte counts once, whoever reads it and how often.
#include "hf/read_sums.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/hash.h"

namespace longshore {
namespace {

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 91 + i / 11);
  return bytes;
}

void read(ReadSums& sums, const std::vector<std::byte>& tensor, Bytes begin, Bytes end) {
  sums.take(
      0, begin,
      std::span(tensor).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
}

// Reads that overlap, repeat, and close a gap make one range with the sum of its bytes.
TEST(ReadSums, CountEachByteOnce) {
  const std::vector<std::byte> tensor = some_bytes(100);
  ReadSums sums(2);
  read(sums, tensor, 10, 20);
  read(sums, tensor, 30, 40);
  read(sums, tensor, 12, 15);
  EXPECT_EQ(sums.ranges(0).size(), 2u);
  read(sums, tensor, 5, 45);
  const std::vector<SummedRange> expected = {
      {5, 45, place_sum(5, std::span(tensor).subspan(5, 40))}};
  EXPECT_EQ(sums.ranges(0), expected);
  read(sums, tensor, 45, 100);
  read(sums, tensor, 0, 5);
  EXPECT_EQ(sums.ranges(0), (std::vector<SummedRange>{{0, 100, place_sum(0, tensor)}}));
  EXPECT_TRUE(sums.ranges(1).empty());
}

// After a restart the same bytes count again: an export sees what the files hold now.
TEST(ReadSums, BeginAnewAfterARestart) {
  std::vector<std::byte> tensor = some_bytes(64);
  ReadSums sums(1);
  read(sums, tensor, 0, 64);
  const uint64_t before = sums.ranges(0).at(0).sum;
  tensor[63] ^= std::byte{1};
  read(sums, tensor, 0, 64);
  EXPECT_EQ(sums.ranges(0).at(0).sum, before);
  sums.restart();
  EXPECT_TRUE(sums.ranges(0).empty());
  read(sums, tensor, 0, 64);
  EXPECT_NE(sums.ranges(0).at(0).sum, before);
}

// Several threads that read the same and neighbouring parts give the sum of the whole.
TEST(ReadSums, AreTheSameForAnyThreads) {
  const std::vector<std::byte> tensor = some_bytes(100'000);
  ReadSums sums(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Bytes step = 997 + t * 13;
      for (Bytes begin = 0; begin < 100'000; begin += step) {
        read(sums, tensor, begin, std::min<Bytes>(100'000, begin + step));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums.ranges(0), (std::vector<SummedRange>{{0, 100'000, place_sum(0, tensor)}}));
}

}  // namespace
}  // namespace longshore
