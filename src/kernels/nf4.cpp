#include "kernels/nf4.h"

#include <span>

#include "base/nf4.h"
#include "kernels/cpu_values.h"

namespace longshore::kernels {

void unpack_nf4_cpu(DType dtype, int64_t elements, const void* packed, int64_t begin, int64_t end,
                    void* y) {
  const Nf4Layout layout(elements);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(packed),
                                         static_cast<size_t>(layout.bytes()));
  write_decoded(dtype, begin, end, y, [&](int64_t at, std::span<float> values) {
    decode_nf4(layout, bytes, at, values);
  });
}

}  // namespace longshore::kernels
