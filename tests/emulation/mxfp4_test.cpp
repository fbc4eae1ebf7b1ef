// The GPU's unpacking of MXFP4, emulated on the host, gives the reference's bits, and the reference
// those of base/mxfp4.h.
#include "kernels/mxfp4.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/mxfp4.h"
#include "tests/emulation/operand.h"
#include "tests/emulation/values.h"

namespace longshore::emulation {
namespace {

template <typename T>
class EmulatedMxfp4 : public testing::Test {
 protected:
  // Every pair of codes and every exponent whose values are finite occur in a large matrix.
  static void compare(int64_t inputs, int64_t outputs) {
    const Mxfp4Layout layout(inputs, outputs);
    std::vector<std::byte> packed(static_cast<size_t>(layout.bytes()));
    for (int64_t i = 0; i < layout.scales_begin(); ++i) {
      packed[static_cast<size_t>(i)] = static_cast<std::byte>(i * 7 % 256);
    }
    for (int64_t i = 0; i < layout.scales_bytes(); ++i) {
      packed[static_cast<size_t>(layout.scales_begin() + i)] = static_cast<std::byte>(i * 5 % 253);
    }
    std::vector<float> decoded(static_cast<size_t>(layout.elements()));
    const auto* const bytes = reinterpret_cast<const uint8_t*>(packed.data());
    decode_mxfp4(
        layout,
        {.first = 0, .count = outputs, .blocks = bytes, .scales = bytes + layout.scales_begin()}, 0,
        decoded);
    std::vector<T> expected(decoded.size());
    const int64_t middle = layout.groups() / 3;
    for (const auto& [begin, end] :
         {std::pair(int64_t{0}, middle), std::pair(middle, layout.groups())}) {
      kernels::unpack_mxfp4_cpu(kDTypeOf<T>, inputs, outputs, packed.data(), begin, end,
                                expected.data());
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(kernels::to_float(expected[i]), decoded[i]) << "exact in both dtypes";
    }
    Operand<std::byte> in("packed", packed);
    Operand<T> out("y", expected.size());
    kernels::unpack_mxfp4_cuda(kDTypeOf<T>, inputs, outputs, in.data(), out.data(), nullptr);
    EXPECT_TRUE(same_bits(out.values(), expected)) << inputs << " x " << outputs;
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmulatedMxfp4, Types);

// Goal: outputs around a tile, a warp and a block of threads, and one and more groups.
TYPED_TEST(EmulatedMxfp4, GivesTheReferencesBits) {
  for (const int64_t outputs : {1, 15, 16, 31, 32, 33, 127, 128, 129, 300}) {
    for (const int64_t inputs : {32, 64, 160}) this->compare(inputs, outputs);
  }
}

}  // namespace
}  // namespace longshore::emulation
