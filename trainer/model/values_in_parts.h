// store_in_parts: makes a range of values as fp32, a part at a time, and stores them as a type. It
// bounds the memory of a conversion. Plain function, any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/number_formats.h"
#include "shard/storage_type.h"

namespace longshore {

// A conversion holds this many values as fp32 on each thread.
inline constexpr size_t kPartElements = size_t{1} << 17;

// Fills `out`, which holds values of `type` from element `begin` on. `make(first, values)` writes
// the fp32 values from element `first` on.
template <typename Make>
void store_in_parts(StorageType type, int64_t begin, std::span<std::byte> out, const Make& make) {
  const auto width = static_cast<size_t>(width_of(number_of(type)));
  std::vector<float> values(std::min(out.size() / width, kPartElements));
  while (!out.empty()) {
    const std::span<float> part =
        std::span(values).first(std::min(out.size() / width, values.size()));
    make(begin, part);
    store_numbers(type, part, out.first(part.size() * width));
    out = out.subspan(part.size() * width);
    begin += static_cast<int64_t>(part.size());
  }
}

}  // namespace longshore
