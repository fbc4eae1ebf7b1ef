// The GPU's pack and unpack, emulated on the host, give the reference's bytes.
#include "kernels/flat_copy.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

using kernels::FlatPiece;

struct Sizes {
  int64_t bytes, padded, shift;  // `shift`: offset of the parameter from an aligned address
};

// Packs pieces of these sizes into memory with other contents, and unpacks them again.
void compare(const std::vector<Sizes>& sizes, int64_t begin) {
  std::deque<Operand<char>> parameters, returned;
  std::vector<FlatPiece> pieces, back;
  int64_t at = begin;
  for (const Sizes& size : sizes) {
    std::vector<char> bytes;
    for (const int64_t byte :
         random_numbers(size.shift + size.bytes, 256, static_cast<uint32_t>(at))) {
      bytes.push_back(static_cast<char>(byte));
    }
    parameters.emplace_back("parameter", bytes);
    returned.emplace_back("returned", bytes.size());
    pieces.push_back({parameters.back().data() + size.shift, at, size.bytes, size.padded});
    back.push_back({returned.back().data() + size.shift, at, size.bytes, size.padded});
    at += size.padded;
  }
  const std::vector<char> junk(static_cast<size_t>(at + 5), 'x');
  auto expected = junk;
  kernels::pack_cpu(pieces, expected.data());
  Operand<char> flat("flat", junk);
  const auto count = static_cast<int64_t>(pieces.size());
  Operand<FlatPiece> table("pieces", pieces), back_table("pieces", back);
  kernels::pack_cuda(table.data(), count, flat.data(), nullptr);
  ASSERT_EQ(flat.values(), expected);
  kernels::unpack_cuda(back_table.data(), count, flat.data(), nullptr);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto shift = static_cast<ptrdiff_t>(sizes[i].shift);
    const auto got = returned[i].values(), want = parameters[i].values();
    ASSERT_TRUE(std::equal(got.begin() + shift, got.end(), want.begin() + shift)) << i;
  }
}

// Goal: 200 tables give the reference's bytes: lengths and offsets of every alignment, padding of
// none to many bytes, no pieces.
TEST(EmulatedFlatCopy, GivesTheReferencesBytes) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const auto random = random_numbers(16, 1 << 20, seed);
    std::vector<Sizes> sizes;
    for (size_t piece = 0; piece < static_cast<size_t>(random[15] % 5); ++piece) {
      const int64_t bytes = random[3 * piece] % (seed % 10 == 0 ? 40'000 : 500);
      const int64_t padding = random[3 * piece + 1] % 70;
      const int64_t aligned = seed % 2 == 0 ? 16 : 1;  // aligned as in the engine, and unaligned
      const int64_t padded = (bytes + padding + aligned - 1) / aligned * aligned;
      sizes.push_back({bytes, padded, random[3 * piece + 2] % 16 / aligned});
    }
    compare(sizes, seed % 2 == 0 ? 0 : random[14] % 16);
  }
}

}  // namespace
}  // namespace longshore::emulation
