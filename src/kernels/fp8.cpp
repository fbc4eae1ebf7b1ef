#include "kernels/fp8.h"

#include <span>

#include "base/fp8.h"
#include "kernels/cpu_values.h"

namespace longshore::kernels {

void unpack_fp8_cpu(DType dtype, int64_t rows, int64_t columns, const void* packed, int64_t begin,
                    int64_t end, void* y) {
  const Fp8Layout layout(rows, columns);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(packed),
                                         static_cast<size_t>(layout.bytes()));
  write_decoded(dtype, begin, end, y, [&](int64_t at, std::span<float> values) {
    decode_fp8(layout, bytes, at, values);
  });
}

}  // namespace longshore::kernels
