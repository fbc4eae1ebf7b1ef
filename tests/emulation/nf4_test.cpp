// The GPU's unpacking of NF4, emulated on the host, gives the reference's bits.
#include "kernels/nf4.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "base/nf4.h"
#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

template <typename T>
class EmulatedNf4 : public testing::Test {
 protected:
  static void compare(int64_t elements) {
    const auto values = random_values<float>(elements, 1);
    const Nf4Layout layout(elements);
    std::vector<std::byte> packed(static_cast<size_t>(layout.bytes()));
    const auto read = [&values](int64_t begin, std::span<float> out) {
      std::copy_n(values.begin() + begin, out.size(), out.begin());
    };
    encode_nf4(layout, read, packed);
    std::vector<T> expected(values.size());
    const int64_t middle = elements / 3;
    for (const auto& [begin, end] : {std::pair(int64_t{0}, middle), std::pair(middle, elements)}) {
      kernels::unpack_nf4_cpu(kDTypeOf<T>, elements, packed.data(), begin, end, expected.data());
    }
    Operand<std::byte> in("packed", packed);
    Operand<T> out("y", values.size());
    kernels::unpack_nf4_cuda(kDTypeOf<T>, elements, in.data(), out.data(), nullptr);
    EXPECT_TRUE(same_bits(out.values(), expected)) << elements;
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedNf4, Types);

// Goal: lengths around a lot of 16 bytes, a block of 64, a group of 256 blocks and a grid's block.
TYPED_TEST(EmulatedNf4, GivesTheReferencesBits) {
  for (int64_t elements = 1; elements <= 140; ++elements) this->compare(elements);
  for (const int64_t around : {1024, 2048, 64 * 256, 2 * 64 * 256}) {
    for (int64_t elements = around - 9; elements < around + 10; ++elements) this->compare(elements);
  }
}

}  // namespace
}  // namespace longshore::emulation
