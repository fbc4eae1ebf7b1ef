// Values of stored tensors, and packed bytes compared with them. Test code.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/number_formats.h"
#include "base/packed_format.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"

namespace longshore {

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

inline std::vector<float> read_whole(const ModelDirectory& directory, const std::string& name) {
  const ModelDirectory::TensorRef ref = directory.find(name);
  std::vector<float> values(static_cast<size_t>(ref.tensor->elements()));
  read_elements(ref, 0, values);
  return values;
}

inline void read_part(const PackedTensor::Part& part, Bytes begin, std::span<std::byte> out) {
  part.file->read(*part.tensor, begin, out);
}

// Expects that each matrix's packed bytes stand for its values, which are bf16, and that any range
// of the bytes is that range of the whole.
inline void expect_packed_values(const ModelDirectory::TensorRef& ref,
                                 const std::vector<float>& values) {
  const std::span<const int64_t> matrix = std::span(ref.tensor->shape).last(2);
  const auto count = static_cast<size_t>(matrix[0] * matrix[1]);
  const PackedTensor& tensor = *ref.packed;
  std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(tensor.format(), matrix)));
  std::vector<float> decoded(count);
  std::mt19937 random(3);
  for (size_t i = 0; i < values.size() / count; ++i) {
    tensor.read_packed(static_cast<int64_t>(i), 0, packed, read_part);
    decode_packed(tensor.format(), matrix, packed, 0, decoded);
    for (float& value : decoded) value = bf16_to_float(float_to_bf16_nearest(value));
    EXPECT_EQ(std::memcmp(decoded.data(), values.data() + i * count, count * sizeof(float)), 0)
        << ref.tensor->name << " " << i;
    for (int n = 0; n < 100; ++n) {
      const size_t begin = random() % packed.size();
      std::vector<std::byte> part(random() % (packed.size() - begin + 1), std::byte{0xEE});
      tensor.read_packed(static_cast<int64_t>(i), static_cast<Bytes>(begin), part, read_part);
      ASSERT_TRUE(std::ranges::equal(part, std::span(packed).subspan(begin, part.size())))
          << ref.tensor->name << " " << i << " " << begin;
    }
  }
}

}  // namespace longshore
