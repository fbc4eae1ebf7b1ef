// The GPU's unpacking of fp8, emulated on the host, gives the reference's bits.
#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/fp8.h"
#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

template <typename T>
class EmulatedFp8 : public testing::Test {
 protected:
  // Every code but NaN occurs in a large matrix.
  static void compare(int64_t rows, int64_t columns) {
    const Fp8Layout layout(rows, columns);
    std::vector<std::byte> packed(static_cast<size_t>(layout.bytes()));
    const auto scales = random_values<float>(layout.scales_bytes() / 4, 1);
    std::memcpy(packed.data(), scales.data(), scales.size() * sizeof(float));
    for (int64_t i = 0; i < layout.elements(); ++i) {
      const auto code = static_cast<unsigned>(i * 7 % 254);
      packed[static_cast<size_t>(layout.codes_begin() + i)] =
          static_cast<std::byte>(code < 127 ? code : code + 1);
    }
    std::vector<T> expected(static_cast<size_t>(layout.elements()));
    const int64_t middle = layout.elements() / 3;
    for (const auto& [begin, end] :
         {std::pair(int64_t{0}, middle), std::pair(middle, layout.elements())}) {
      kernels::unpack_fp8_cpu(kDTypeOf<T>, rows, columns, packed.data(), begin, end,
                              expected.data());
    }
    Operand<std::byte> in("packed", packed);
    Operand<T> out("y", expected.size());
    kernels::unpack_fp8_cuda(kDTypeOf<T>, rows, columns, in.data(), out.data(), nullptr);
    EXPECT_TRUE(same_bits(out.values(), expected)) << rows << " x " << columns;
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedFp8, Types);

// Goal: lots of 16 bytes that end in another row or block than they begin in, and a rest.
TYPED_TEST(EmulatedFp8, GivesTheReferencesBits) {
  for (int64_t columns = 1; columns <= 17; ++columns) this->compare(131, columns);
  for (const int64_t columns : {127, 128, 129, 255, 256, 300}) {
    for (const int64_t rows : {1, 2, 127, 130}) this->compare(rows, columns);
  }
}

}  // namespace
}  // namespace longshore::emulation
