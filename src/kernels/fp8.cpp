#include "kernels/fp8.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/fp8.h"
#include "kernels/cpu_values.h"

namespace longshore::kernels {

void unpack_fp8_cpu(DType dtype, int64_t rows, int64_t columns, const void* packed, int64_t begin,
                    int64_t end, void* y) {
  const Fp8Layout layout(rows, columns);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(packed),
                                         static_cast<size_t>(layout.bytes()));
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    std::array<float, 1024> values{};
    for (int64_t at = begin; at < end;) {
      const auto count = static_cast<size_t>(std::min<int64_t>(1024, end - at));
      decode_fp8(layout, bytes, at, std::span(values).first(count));
      T* const out = static_cast<T*>(y) + at;
      for (size_t i = 0; i < count; ++i) out[i] = rounded_to<T>(values[i]);
      at += static_cast<int64_t>(count);
    }
  });
}

}  // namespace longshore::kernels
