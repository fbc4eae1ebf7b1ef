// The GPU's unpacking of packed formats, emulated on the host, gives the reference's bits, and the
// reference of MXFP4 those of base/mxfp4.h.
#include "kernels/unpack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fp8.h"
#include "base/mxfp4.h"
#include "base/nf4.h"
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

TYPED_TEST_SUITE(EmulatedNf4, Types);

// Goal: lengths around a lot of 16 bytes, a block of 64, a group of 256 blocks and a grid's block.
TYPED_TEST(EmulatedNf4, GivesTheReferencesBits) {
  for (int64_t elements = 1; elements <= 140; ++elements) this->compare(elements);
  for (const int64_t around : {1024, 2048, 64 * 256, 2 * 64 * 256}) {
    for (int64_t elements = around - 9; elements < around + 10; ++elements) this->compare(elements);
  }
}

template <typename T>
class EmulatedNf4F32 : public testing::Test {
 protected:
  static void compare(int64_t elements) {
    const Nf4F32Layout layout(elements);
    std::vector<std::byte> packed(static_cast<size_t>(layout.bytes()));
    const auto scales = random_values<float>(layout.blocks(), 1);
    std::memcpy(packed.data(), scales.data(), scales.size() * sizeof(float));
    for (int64_t i = 0; i < (elements + 1) / 2; ++i) {
      packed[static_cast<size_t>(layout.codes_begin() + i)] = static_cast<std::byte>(i * 7 % 256);
    }
    std::vector<T> expected(static_cast<size_t>(elements));
    const int64_t middle = elements / 3;
    for (const auto& [begin, end] : {std::pair(int64_t{0}, middle), std::pair(middle, elements)}) {
      kernels::unpack_nf4_f32_cpu(kDTypeOf<T>, elements, packed.data(), begin, end,
                                  expected.data());
    }
    for (int64_t i = 0; i < elements; ++i) {
      const int64_t byte = i / 2 * 7 % 256;
      const float level = kNf4Levels[static_cast<size_t>(i % 2 == 0 ? byte >> 4 : byte & 15)];
      ASSERT_EQ(kernels::to_float(expected[static_cast<size_t>(i)]),
                kernels::rounded<T>(level * scales[static_cast<size_t>(i / 64)]))
          << i;
    }
    Operand<std::byte> in("packed", packed);
    Operand<T> out("y", expected.size());
    kernels::unpack_nf4_f32_cuda(kDTypeOf<T>, elements, in.data(), out.data(), nullptr);
    EXPECT_TRUE(same_bits(out.values(), expected)) << elements;
  }
};

TYPED_TEST_SUITE(EmulatedNf4F32, Types);

// Goal: lengths around a lot of 16 bytes, a block of 64 and a grid's block.
TYPED_TEST(EmulatedNf4F32, GivesTheReferencesBits) {
  for (int64_t elements = 1; elements <= 140; ++elements) this->compare(elements);
  for (const int64_t around : {1024, 2048, 64 * 256}) {
    for (int64_t elements = around - 9; elements < around + 10; ++elements) this->compare(elements);
  }
}

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

TYPED_TEST_SUITE(EmulatedMxfp4, Types);

// Goal: outputs around a tile, a warp and a block of threads, and one and more groups.
TYPED_TEST(EmulatedMxfp4, GivesTheReferencesBits) {
  for (const int64_t outputs : {1, 15, 16, 31, 32, 33, 127, 128, 129, 300}) {
    for (const int64_t inputs : {32, 64, 160}) this->compare(inputs, outputs);
  }
}

}  // namespace
}  // namespace longshore::emulation
