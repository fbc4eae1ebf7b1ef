#include "kernels/unpack.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/fp8.h"
#include "base/mxfp4.h"
#include "base/nf4.h"
#include "kernels/cpu_values.h"

namespace longshore::kernels {
namespace {

constexpr int64_t kGroup = Mxfp4Layout::kGroup;
constexpr int64_t kTile = 32;  // outputs whose values are written together: a cache line in bf16

// Writes the values of a group of inputs and of `count` outputs from `first` on.
template <typename T>
void unpack_mxfp4_tile(const Mxfp4Layout& layout, const uint8_t* packed, int64_t group,
                       int64_t first, int64_t count, T* y) {
  std::array<std::array<T, kTile>, kGroup> values;  // by input, then output
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = (first + i) * layout.groups() + group;
    const float power = mxfp4_powers()[packed[layout.scales_begin() + at]];
    const uint8_t* const pairs = packed + at * Mxfp4Layout::kGroupBytes;
    for (size_t input = 0; input < values.size(); input += 2) {
      const uint8_t pair = pairs[input / 2];
      values[input][static_cast<size_t>(i)] = rounded_to<T>(kMxfp4Numbers[pair & 15] * power);
      values[input + 1][static_cast<size_t>(i)] = rounded_to<T>(kMxfp4Numbers[pair >> 4] * power);
    }
  }
  T* out = y + group * kGroup * layout.outputs() + first;
  for (const std::array<T, kTile>& row : values) {
    std::copy_n(row.begin(), count, out);
    out += layout.outputs();
  }
}

template <typename Layout>
std::span<const std::byte> bytes_of(const void* packed, const Layout& layout) {
  return {static_cast<const std::byte*>(packed), static_cast<size_t>(layout.bytes())};
}

}  // namespace

void unpack_fp8_cpu(DType dtype, int64_t rows, int64_t columns, const void* packed, int64_t begin,
                    int64_t end, void* y) {
  const Fp8Layout layout(rows, columns);
  write_decoded(dtype, begin, end, y, [&](int64_t at, std::span<float> values) {
    decode_fp8(layout, bytes_of(packed, layout), at, values);
  });
}

void unpack_nf4_cpu(DType dtype, int64_t elements, const void* packed, int64_t begin, int64_t end,
                    void* y) {
  const Nf4Layout layout(elements);
  write_decoded(dtype, begin, end, y, [&](int64_t at, std::span<float> values) {
    decode_nf4(layout, bytes_of(packed, layout), at, values);
  });
}

void unpack_nf4_f32_cpu(DType dtype, int64_t elements, const void* packed, int64_t begin,
                        int64_t end, void* y) {
  const Nf4F32Layout layout(elements);
  write_decoded(dtype, begin, end, y, [&](int64_t at, std::span<float> values) {
    decode_nf4_f32(layout, bytes_of(packed, layout), at, values);
  });
}

void unpack_mxfp4_cpu(DType dtype, int64_t inputs, int64_t outputs, const void* packed,
                      int64_t begin_group, int64_t end_group, void* y) {
  const Mxfp4Layout layout(inputs, outputs);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t group = begin_group; group < end_group; ++group) {
      for (int64_t first = 0; first < outputs; first += kTile) {
        unpack_mxfp4_tile(layout, static_cast<const uint8_t*>(packed), group, first,
                          std::min(kTile, outputs - first), static_cast<T*>(y));
      }
    }
  });
}

}  // namespace longshore::kernels
